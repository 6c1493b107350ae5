// RankFile: what one rank of a node shows the others in an exchange (node_exchange.h).
//
//   rank-0003          0       ExchangeHeader   who wrote it
//                      64      ExchangeLive     words that change: how far the rank has come
//                      1024    ExchangeVerdict  the leader's: whether a step can be made
//                      2112    ExchangeStatement  what the rank says before that
//                      4096    ExchangeCall     what it is exchanging
//                      16384   contribution     its gradients, grouped by the rank that merges them
//   rank-0003.merged   0       merged           the part of the node's gradients that it has merged
//   rank-0003.lock             held while the process lives
//
// Every rank writes its own files only and reads the others'.
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

constexpr uint32_t kExchangeVersion = 2;
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
  // Only grow; what they count is node_exchange.cc's.
  std::atomic<uint64_t> phase;      // how far the rank is
  std::atomic<uint64_t> published;  // up to which phase the leader may read what it has merged
  std::atomic<uint64_t> drained;    // the leader's: up to which phase it has read that
  alignas(64) std::atomic<int64_t> pid;
  std::atomic<int64_t> step;       // that the rank is making, or has made last
  std::atomic<uint64_t> rank;      // among all ranks of the job
  std::atomic<uint64_t> failed;    // 1 when `failure` says why
  std::atomic<uint64_t> left;      // 1 when the rank needs the others no more: its end is no death
  std::atomic<uint64_t> progress;  // counts what the rank does between steps: others wait on
  char failure[512];
};
static_assert(sizeof(ExchangeLive) == 640, "shared layout");

struct ExchangeCall {
  char operation[128];
  int64_t step;
  uint32_t reduction;
  uint32_t tables;
  uint64_t rounds;  // that this rank needs
  uint64_t contribution_bytes, merged_bytes;
  uint32_t dims[kMaxTables];
};
static_assert(sizeof(ExchangeCall) == 168 + 4 * kMaxTables, "shared layout");

struct ExchangeVerdict {
  std::atomic<uint64_t> count;  // of verdicts so far; this is the last one
  int64_t step;
  uint32_t code;  // of a Status
  char text[1024];
};
static_assert(sizeof(ExchangeVerdict) == 1048, "shared layout");

struct ExchangeStatement {
  std::atomic<uint64_t> count;  // of statements so far; this is the last one
  int64_t step;
  uint64_t digest;  // of what must be equal on all ranks
  uint32_t code;    // of a Status: why this rank cannot make the step
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

// Hands out arrays of one memory area, one after another, each on its own cache line. Whoever takes
// the same arrays in the same order finds them: the writer's layout is the reader's.
class ArrayArea {
 public:
  // `base` null: only counts bytes.
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

// The owner tells the others, who may be waiting, how far it is.
void Advance(std::atomic<uint64_t>& word, uint64_t to);

class RankFile {
 public:
  // Makes this rank's files in `folder` (which exists) and takes its lock. They must not be there.
  static Result<std::unique_ptr<RankFile>> Create(const std::string& folder, int local_rank,
                                                  int local_size, int64_t rank);
  // Another rank's. DataLoss when it is of another build or of a node with another number of ranks.
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

  // The owner: makes room.
  Status ReserveContribution(size_t bytes) { return main_->Reserve(kContributionOffset + bytes); }
  Status ReserveMerged(size_t bytes) { return merged_->Reserve(bytes); }
  // The others: DataLoss unless that many bytes can be read.
  Status CheckContribution(size_t bytes) const {
    return Check(*main_, kContributionOffset + bytes);
  }
  Status CheckMerged(size_t bytes) const { return Check(*merged_, bytes); }

  // One's own, opened a second time: from now on its words can be written here, too.
  Status MakeWritable() { return main_->MakeWritable(); }

  // Whether this process made the file; false in its forked children.
  bool OwnedByThisProcess() const { return lock_ != nullptr && lock_->HeldByThisProcess(); }
  // Whether the process lives. Not asked of one's own file.
  bool Alive() const { return probe_->Held(); }

 private:
  static Status Check(MappedFile& file, size_t bytes);

  std::unique_ptr<MappedFile> main_, merged_;
  std::unique_ptr<FileLock> lock_;    // of one's own
  std::unique_ptr<LockProbe> probe_;  // of another's
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_RANK_FILE_H_
