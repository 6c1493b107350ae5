// RankFile: the files through which a rank of a node exchanges data with the others
// (node_phases.h).
//
//   rank-0003          0       ExchangeHeader   the writer
//                      64      ExchangeLive     words that change: the rank's progress
//                      1024    ExchangeVerdict  written by the leader: whether a step can be made
//                      2112    ExchangeStatement  the rank's statement before the verdict
//                      4096    ExchangeCall     the current call
//                      16384   contribution     gradients, grouped by the rank that merges them
//   rank-0003.merged   0       merged           the part of the node's gradients that this rank
//   merged rank-0003.lock             held while the process lives
//
// Every rank writes only its own files, and reads the files of the others.
#ifndef TFSPS_CORE_EXCHANGE_RANK_FILE_H_
#define TFSPS_CORE_EXCHANGE_RANK_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/limits.h"
#include "core/base/status.h"
#include "core/os/file_lock.h"
#include "core/os/mapped_file.h"

namespace tsps {

constexpr uint32_t kExchangeVersion = 3;
constexpr uint64_t kExchangeMagic = 0x3261727873707374ULL;  // "tspsxra2", little-endian

struct ExchangeHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;
  uint32_t local_rank;
  uint32_t local_size;
};
static_assert(sizeof(ExchangeHeader) == 24, "shared layout");

struct ExchangeLive {
  // These only grow. node_exchange.cc and row_pull.cc list the phases.
  std::atomic<uint64_t> phase;      // the phase that the rank has reached
  std::atomic<uint64_t> published;  // others may read merged data up to this phase
  std::atomic<uint64_t> drained;    // the leader has read merged data up to this phase
  alignas(64) std::atomic<int64_t> pid;
  std::atomic<int64_t> step;       // the step that the rank is making, or has made last
  std::atomic<uint64_t> rank;      // among all ranks of the job
  std::atomic<uint64_t> failed;    // 1 when `failure` has the reason
  std::atomic<uint64_t> left;      // 1 when the rank no longer needs the others
  std::atomic<uint64_t> progress;  // counts work between steps, for which others wait longer
  char failure[512];
};
static_assert(sizeof(ExchangeLive) == 640, "shared layout");

struct ExchangeCall {
  char operation[128];
  int64_t step;
  uint32_t reduction;
  uint32_t tables;
  uint64_t rounds;  // the number that this rank needs
  uint64_t contribution_bytes, merged_bytes;
  uint32_t dims[kMaxTables];
};
static_assert(sizeof(ExchangeCall) == 168 + 4 * kMaxTables, "shared layout");

struct ExchangeVerdict {
  std::atomic<uint64_t> count;  // number of verdicts so far; this is the last one
  int64_t step;
  uint32_t code;  // a Status code
  char text[1024];
};
static_assert(sizeof(ExchangeVerdict) == 1048, "shared layout");

struct ExchangeStatement {
  std::atomic<uint64_t> count;  // number of statements so far; this is the last one
  int64_t step;
  uint64_t digest;  // a checksum of what must be equal on all ranks
  uint32_t code;    // a Status code: why this rank cannot make the step
  char text[1024];
};
static_assert(sizeof(ExchangeStatement) == 1056, "shared layout");

constexpr size_t kVerdictOffset = 1024;
constexpr size_t kStatementOffset = 2112;
constexpr size_t kCallOffset = 4096;
static_assert(64 + sizeof(ExchangeLive) <= kVerdictOffset, "shared layout");
static_assert(kVerdictOffset + sizeof(ExchangeVerdict) <= kStatementOffset, "shared layout");
static_assert(kStatementOffset + sizeof(ExchangeStatement) <= kCallOffset, "shared layout");
constexpr size_t kContributionOffset = 16384;
static_assert(kCallOffset + sizeof(ExchangeCall) <= kContributionOffset, "shared layout");

// ArrayArea lays out arrays in one memory area, one after another, each on its own cache line. A
// reader that takes the same arrays in the same order as the writer gets the same addresses.
class ArrayArea {
 public:
  // If `base` is null, it only counts bytes.
  explicit ArrayArea(char* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <typename T>
  T* Take(size_t n) {
    T* const array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ = (bytes_ + n * sizeof(T) + 63) & ~size_t{63};
    return array;
  }
  size_t bytes() const { return bytes_; }

 private:
  const uintptr_t base_;
  size_t bytes_ = 0;
};

// Raises a word of this rank's file, and wakes the ranks that wait for it.
void Advance(std::atomic<uint64_t>& word, uint64_t to);

class RankFile {
 public:
  // Creates this rank's files in `folder`, which exists, and takes its lock. Removes files that a
  // failed attempt left. Fails if another process has the lock.
  static Result<std::unique_ptr<RankFile>> Create(const std::string& folder, int local_rank,
                                                  int local_size, int64_t rank);
  // Opens another rank's files. DataLoss: they are of another build, or of a node with another
  // number of ranks.
  static Result<std::unique_ptr<RankFile>> Open(const std::string& folder, int local_rank,
                                                int local_size);

  ExchangeLive& live() const { return *reinterpret_cast<ExchangeLive*>(main_->data() + 64); }
  ExchangeVerdict& verdict() const {
    return *reinterpret_cast<ExchangeVerdict*>(main_->data() + kVerdictOffset);
  }
  ExchangeStatement& statement() const {
    return *reinterpret_cast<ExchangeStatement*>(main_->data() + kStatementOffset);
  }
  ExchangeCall& call() const {
    return *reinterpret_cast<ExchangeCall*>(main_->data() + kCallOffset);
  }
  char* contribution() const { return main_->data() + kContributionOffset; }
  char* merged() const { return merged_->data(); }

  // For the owner: reserves space.
  Status ReserveContribution(size_t bytes) { return main_->Reserve(kContributionOffset + bytes); }
  Status ReserveMerged(size_t bytes) { return merged_->Reserve(bytes); }
  // For the others. DataLoss: fewer bytes can be read.
  Status CheckContribution(size_t bytes) const {
    return Check(*main_, kContributionOffset + bytes);
  }
  Status CheckMerged(size_t bytes) const { return Check(*merged_, bytes); }

  // Lets this process write the words of its own file, which it has opened a second time.
  Status MakeWritable() { return main_->MakeWritable(); }

  // Whether this process made the file; false in its forked children.
  bool OwnedByThisProcess() const { return lock_ != nullptr && lock_->HeldByThisProcess(); }
  // Whether the rank's process lives. Only for another rank's file.
  bool Alive() const { return probe_->Held(); }

 private:
  static Status Check(MappedFile& file, size_t bytes);

  std::unique_ptr<MappedFile> main_, merged_;
  std::unique_ptr<FileLock> lock_;    // for this rank's own file
  std::unique_ptr<LockProbe> probe_;  // for another rank's file
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_RANK_FILE_H_
