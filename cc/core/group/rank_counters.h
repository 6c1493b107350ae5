// RankCounters: a page in a group's folder in which one rank counts what it does. Any process may
// read it while the job runs, and after it was killed.
//
//   <group>/.counters-0003    0      RankCountersHeader   the process
//                             512    text                 what it is doing, for readers
//                             1024   uint64_t[]           the counters, in the order of the list
//
// Only the rank writes its page, with single stores and no lock. Counters only grow while the
// process lives, so a reader may see some of them from before others.
#ifndef TFSPS_CORE_GROUP_RANK_COUNTERS_H_
#define TFSPS_CORE_GROUP_RANK_COUNTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"

namespace tsps {

// The counters: their names, and what they count since the process began. docs/metrics.md describes
// the same for users. A new counter goes to the end.
#define TSPS_RANK_COUNTERS(COUNTER)                                              \
  COUNTER(step)               /* the committed step of the node's tables */      \
  COUNTER(lookups)            /* calls that looked up rows */                    \
  COUNTER(ids_looked_up)      /* ids of these calls */                           \
  COUNTER(ids_trained)        /* ids of the calls that also found unique keys */ \
  COUNTER(unique_ids)         /* unique keys of those calls */                   \
  COUNTER(rows_shared)        /* gradient rows put into shared memory */         \
  COUNTER(bytes_shared)       /* their bytes, with keys */                       \
  COUNTER(rows_merged)        /* rows after merging, of this rank's key range */ \
  COUNTER(rounds)             /* merges */                                       \
  COUNTER(waited_ns)          /* waits in merges for other ranks of the node */  \
  COUNTER(bytes_sent)         /* sparse gradients packed for other nodes */      \
  COUNTER(bytes_received)     /* and unpacked */                                 \
  COUNTER(sending_ns)         /* time of sparse gradients between nodes */       \
  COUNTER(overlapped_ns)      /* the part in which this rank computed */         \
  COUNTER(rows_written)       /* rows that steps wrote; on the leader */         \
  COUNTER(rows_read)          /* rows read from disk */                          \
  COUNTER(disk_bytes)         /* bytes of these reads */                         \
  COUNTER(rows_read_late)     /* rows that a lookup or step waited for */        \
  COUNTER(rows_read_before)   /* rows that were needed, and had been read */     \
  COUNTER(disk_waited_ns)     /* waits for rows on disk */                       \
  COUNTER(disk_errors)        /* reads and writes that failed */                 \
  COUNTER(rows_pulled)        /* rows of other nodes that lookups needed */      \
  COUNTER(rows_pulled_before) /* rows of these that had come before */           \
  COUNTER(cache_lookups)      /* unique keys looked up in device caches */       \
  COUNTER(cache_misses)       /* keys of these that the caches did not have */   \
  COUNTER(samples_trained)    /* samples of the batches that fit has trained */

enum class RankCounter : int {
#define TSPS_COUNTER_NAME(name) name,
  TSPS_RANK_COUNTERS(TSPS_COUNTER_NAME)
#undef TSPS_COUNTER_NAME
      kCount
};
constexpr size_t kRankCounters = static_cast<size_t>(RankCounter::kCount);

struct RankCountersHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t counters;   // number of counters that the writer knows
  int64_t pid;         // in its PID namespace
  uint64_t started;    // clock ticks since boot; with the pid it identifies the process
  int64_t rank, size;  // among all ranks of the job
  int64_t local_rank;
  std::atomic<int64_t> updated_ns;  // when counters were last stored, since 1970
};
static_assert(sizeof(RankCountersHeader) == 64, "shared layout");

constexpr size_t kRankTextOffset = 512, kRankTextBytes = 512;
constexpr size_t kRankCountersOffset = 1024;
constexpr size_t kRankPageBytes = 4096;
static_assert(kRankCountersOffset + 8 * kRankCounters <= kRankPageBytes, "shared layout");

// What a reader finds in a page.
struct RankReport {
  int64_t pid = 0, rank = 0, size = 0, local_rank = 0;
  uint64_t started = 0;
  int64_t updated_ns = 0;
  std::string activity;
  std::vector<uint64_t> values;  // at most kRankCounters, fewer if an older library writes them
};

class RankCounters {
 public:
  // Creates the page of a rank of this process. Replaces that of an earlier process.
  static Result<std::unique_ptr<RankCounters>> Create(const std::string& group_path, int64_t rank,
                                                      int64_t size, int64_t local_rank);
  // Opens the page of this process's rank a second time, to set its activity.
  static Result<std::unique_ptr<RankCounters>> Open(const std::string& path);
  // Reads a page. NotFound: it is not there. DataLoss: it is not a page of counters.
  static Result<RankReport> Read(const std::string& path);
  // Names in the order of values.
  static const std::vector<std::string>& Names();

  // Stores the counters. One thread at a time.
  void Store(const uint64_t (&values)[kRankCounters]);
  // Stores what the process is doing. One thread at a time.
  void SetActivity(const std::string& text);

 private:
  explicit RankCounters(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  RankCountersHeader& header() const {
    return *reinterpret_cast<RankCountersHeader*>(file_->data());
  }

  const std::unique_ptr<MappedFile> file_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_RANK_COUNTERS_H_
