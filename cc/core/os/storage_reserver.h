// StorageReserver: a helper thread that grows files ahead of need, so that publishing a step rarely
// waits for the kernel to clear pages (0.26 ms per MiB), puts large ones into huge pages (1.5 to 4
// ms per MiB), and unmaps those that nobody needs. Files must outlive it.
#ifndef TFSPS_CORE_OS_STORAGE_RESERVER_H_
#define TFSPS_CORE_OS_STORAGE_RESERVER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"

namespace tsps {

class StorageReserver {
 public:
  StorageReserver();
  ~StorageReserver();

  // Makes sure that `file` has `used` bytes, now, and asks the helper for a quarter more (64 KiB to
  // 64 MiB) when little is left. The helper stops where room gets scarce, and its failures are
  // silent: the next Ensure that needs the room reports them. It collapses the file's pages, too,
  // slowly while files grow.
  Status Ensure(MappedFile& file, size_t used);
  // Collapses the file's pages as far as it has grown, with nothing else to do.
  void Collapse(MappedFile& file);
  // Takes back what the helper was asked for these files; waits if it is just at work on one.
  void Cancel(const std::vector<const MappedFile*>& files);
  // Unmaps a file, without waiting. Its pages are given back then, if it was removed before.
  void Discard(std::unique_ptr<MappedFile> file);

 private:
  using Clock = std::chrono::steady_clock;
  struct Wanted {
    MappedFile* file;
    size_t bytes;
  };
  struct Requests {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<const MappedFile*, Wanted> wanted;
    std::set<MappedFile*> collapsing;
    std::vector<std::unique_ptr<MappedFile>> discarded;
    Clock::time_point grown;              // when the helper last made a file larger
    Clock::time_point next_collapse;      // not before, while files grow
    const MappedFile* at_work = nullptr;  // of the helper, now
    bool stop = false;
  };
  // Under the mutex. Drops the requests if the helper cannot be started: a later one tries again.
  void Notify();
  void Run();

  const int pid_;
  std::unique_ptr<Requests> requests_;
  std::thread thread_;  // started by the first request
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_STORAGE_RESERVER_H_
