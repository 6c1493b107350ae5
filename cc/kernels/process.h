// What the kernels of this process share besides its groups: the thread pool, counters, and how it
// ends.
#ifndef TFSPS_KERNELS_PROCESS_H_
#define TFSPS_KERNELS_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/executor.h"

namespace tsps {

// The pool as of now; a call keeps it for its duration, whatever SetThreads does meanwhile.
std::shared_ptr<Executor> SharedExecutor();
// The pool for updates of tables, which the other ranks of the node wait for.
std::shared_ptr<Executor> WriterExecutor();
// Of each. 0: one per processor this process may use.
void SetThreads(int threads, int writer_threads);

// From now on std::terminate waits two seconds before it ends the process. Horovod's thread calls
// it the moment another rank's socket closes, in jobs with process sets; what watches the ranks
// needs some milliseconds to say which one died, more on a busy machine. Once per process.
void HoldTerminate();

// An op has failed because there was no room: files, memory, or rows.
void NoteOutOfRoom();
// Whether that is so, and this process has made no step of any group since.
bool OutOfRoom();

// What has been packed to be sent, and unpacked, padding included.
struct WireCounters {
  std::atomic<uint64_t> bytes_packed{0};
  std::atomic<uint64_t> bytes_unpacked{0};
};
WireCounters& ProcessWireCounters();

}  // namespace tsps

#endif  // TFSPS_KERNELS_PROCESS_H_
