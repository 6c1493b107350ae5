// Timeline: the spans of time in which kernels and collectives of this process ran. It also refuses
// collectives that must not begin.
//
// Two counters are always on: the time for which gradients were in flight between nodes, and the
// part of it in which this rank merged, packed or reduced other gradients, including waits for the
// ranks of its node. While the timeline records, it keeps every span.
#ifndef TFSPS_KERNELS_TIMELINE_H_
#define TFSPS_KERNELS_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

// Thread-safe.
class Timeline {
 public:
  struct Interval {
    uint64_t begin_ns, end_ns;  // on the monotonic clock
  };
  static constexpr size_t kMostSpans = 1 << 16;  // further spans are not recorded

  // Returns the timeline, which is never destroyed, because TensorFlow's threads may run kernels at
  // exit.
  static Timeline& Get();

  // Drops all recorded spans, and starts to record.
  void Start();
  // Stops, and returns a JSON list of [name, begin, end], with times in nanoseconds.
  std::string Stop();
  // Returns such a list of the collectives that have begun and not ended. Their end is now.
  std::string InFlight();

  // Records a kernel's work.
  void AddWork(const char* name, Interval work, bool of_ring);
  // Record the begin and the end of a collective. Unavailable: collectives are refused.
  Status BeginCollective(const std::string& name);
  void EndCollective(const std::string& name);

  // Refuses collectives and merges that begin later, for this reason. An empty reason allows them.
  void RefuseCollectives(const std::string& reason);
  // Unavailable: collectives and merges are refused.
  Status MayBegin(const std::string& name);

  struct Counters {
    uint64_t sending_ns = 0;     // the time of collectives between nodes
    uint64_t overlapped_ns = 0;  // the part of it during work of the ring
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
  std::string refusal_;                    // why collectives do not begin; "" if they do
  std::vector<Interval> sent_, worked_;    // the latest intervals, to find overlaps
  Counters counters_;
};

// Records the enclosing block as work.
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
