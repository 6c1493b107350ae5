// State that all kernels of this process share, in addition to its groups: thread pools, counters,
// and the handling of errors that end the process.
#ifndef TFSPS_KERNELS_PROCESS_H_
#define TFSPS_KERNELS_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/executor.h"

namespace tsps {

// Returns the present thread pool. The caller keeps it for a whole call, also if SetThreads
// replaces it meanwhile.
std::shared_ptr<Executor> SharedExecutor();
// Returns the pool for updates of tables, for which the other ranks of the node wait.
std::shared_ptr<Executor> WriterExecutor();
// Sets the number of threads of each pool. 0: one per processor that this process may use.
void SetThreads(int threads, int writer_threads);

// Makes std::terminate wait two seconds before it ends the process. In jobs with process sets,
// Horovod's thread calls it as soon as another rank's socket closes. The watcher of the ranks needs
// some milliseconds, on a busy machine more, to report which rank died. Once per process.
void HoldTerminate();

// Records that an op failed because files, memory or rows were exhausted.
void NoteOutOfRoom();
// Returns whether that happened, and this process has made no step of any group since.
bool OutOfRoom();

// The bytes that were packed to be sent, and that were received and unpacked, including padding.
struct WireCounters {
  std::atomic<uint64_t> bytes_packed{0};
  std::atomic<uint64_t> bytes_unpacked{0};
};
WireCounters& ProcessWireCounters();

}  // namespace tsps

#endif  // TFSPS_KERNELS_PROCESS_H_
