// StorageReserver: a helper thread that prepares files in the background. It grows files ahead of
// need, so that publishing a step rarely waits until the kernel has cleared pages (0.26 ms per
// MiB). It collapses large files into huge pages (1.5 to 4 ms per MiB). And it unmaps files that
// are no longer needed. Files must outlive it.
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

// Thread-safe. The first request starts the thread.
class StorageReserver {
 public:
  StorageReserver();
  ~StorageReserver();

  // Makes sure that `file` has `used` bytes when this returns, and asks the helper for a quarter
  // more (64 KiB to 64 MiB) when little of that is left. The helper stops when space becomes
  // scarce, and its failures are silent: the next Ensure that needs the space reports them. The
  // helper also collapses the file's pages, slowly while files grow.
  Status Ensure(MappedFile& file, size_t used);
  // Asks the helper to collapse the pages of the file that exist now.
  void Collapse(MappedFile& file);
  // Cancels all requests for these files. Waits if the helper is working on one of them.
  void Cancel(const std::vector<const MappedFile*>& files);
  // Asks the helper to unmap a file, and does not wait. If the file was removed before, this frees
  // its pages.
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
    Clock::time_point grown;              // when the helper last grew a file
    Clock::time_point next_collapse;      // the earliest time, while files grow
    const MappedFile* at_work = nullptr;  // the file that the helper works on; null: none
    bool stop = false;
    std::thread thread;  // started by the first request
  };
  // Starts the thread if need be, and wakes it. Drops all requests if the thread cannot be started;
  // a later request tries again. Called with the mutex.
  void Notify();
  void Run();

  const int pid_;
  std::unique_ptr<Requests> requests_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_STORAGE_RESERVER_H_
