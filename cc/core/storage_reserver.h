// StorageReserver: a helper thread that grows files ahead of need, so that publishing a step rarely
// waits for the kernel to clear pages (0.26 ms per MiB). Files must outlive it.
#ifndef TFSPS_CORE_STORAGE_RESERVER_H_
#define TFSPS_CORE_STORAGE_RESERVER_H_

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/mapped_file.h"
#include "core/status.h"

namespace tsps {

class StorageReserver {
 public:
  StorageReserver();
  ~StorageReserver();

  // Makes sure that `file` has `used` bytes, now, and asks the helper for a quarter more (64 KiB to
  // 64 MiB) when little is left. The helper stops where room gets scarce, and its failures are
  // silent: the next Ensure that needs the room reports them.
  Status Ensure(MappedFile& file, size_t used);

 private:
  struct Requests {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<MappedFile*, size_t> wanted;  // bytes
    bool stop = false;
  };
  void Run();

  const int pid_;
  std::unique_ptr<Requests> requests_;
  std::thread thread_;  // started by the first request
};

}  // namespace tsps

#endif  // TFSPS_CORE_STORAGE_RESERVER_H_
