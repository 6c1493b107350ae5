// Timeline: what this process's kernels and collectives did, and when.
//
// Always on are two counters: how long gradients were on their way between nodes, and how much of
// that this rank was inside merging, packing or reducing others, waits for the ranks of its node
// included. While recording, every span is kept.
#ifndef TFSPS_KERNELS_TIMELINE_H_
#define TFSPS_KERNELS_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tsps {

// Thread-safe.
class Timeline {
 public:
  struct Interval {
    uint64_t begin_ns, end_ns;  // of the monotonic clock
  };
  static constexpr size_t kMostSpans = 1 << 16;  // more are not recorded

  // Never destroyed: TensorFlow's threads may run kernels at exit.
  static Timeline& Get();

  // Drops what has been recorded, and records from now on.
  void Start();
  // Stops, and returns a JSON list of [name, begin, end], times in nanoseconds.
  std::string Stop();
  // Collectives that have begun and not ended, likewise; their end is now.
  std::string InFlight();

  // A kernel's work.
  void AddWork(const char* name, Interval work, bool of_ring);
  // A collective: handed over, and done.
  void BeginCollective(const std::string& name);
  void EndCollective(const std::string& name);

  struct Counters {
    uint64_t sending_ns = 0;     // collectives between nodes
    uint64_t overlapped_ns = 0;  // with work of the ring
  };
  Counters counters();

 private:
  struct Span {
    std::string name;
    Interval interval;
  };
  template <typename Name>
  void Record(const Name& name, Interval interval);

  std::mutex mutex_;
  bool recording_ = false;
  std::vector<Span> spans_;
  std::map<std::string, uint64_t> begun_;  // collectives in flight
  std::vector<Interval> sent_, worked_;    // the latest, to be compared with each other
  Counters counters_;
};

// Work of the enclosing block.
class WorkSpan {
 public:
  explicit WorkSpan(const char* name, bool of_ring = false);
  ~WorkSpan();
  WorkSpan(const WorkSpan&) = delete;
  WorkSpan& operator=(const WorkSpan&) = delete;

 private:
  const char* const name_;
  const bool of_ring_;
  const uint64_t begin_ns_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_TIMELINE_H_
