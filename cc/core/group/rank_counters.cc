#include "core/group/rank_counters.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/os/process_info.h"

namespace tsps {
namespace {

constexpr uint64_t kMagic = 0x6e63726173707374ULL;  // "tspsarcn", little-endian
constexpr uint32_t kVersion = 1;

int64_t WallClockNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<std::unique_ptr<MappedFile>> OpenPage(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file,
                        MappedFile::Open(path, kRankPageBytes, kRankPageBytes));
  const RankCountersHeader& header = *reinterpret_cast<RankCountersHeader*>(file->data());
  const uint64_t magic = header.magic;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (magic != kMagic || header.version != kVersion) {
    return Error(Code::kDataLoss, path, " does not have the counters of a rank in version ",
                 kVersion);
  }
  return file;
}

// Bytes of the page that readers and the rank use at the same time.
std::atomic<uint64_t>* Words(char* page, size_t offset) {
  return reinterpret_cast<std::atomic<uint64_t>*>(page + offset);
}

}  // namespace

Result<std::unique_ptr<RankCounters>> RankCounters::Create(const std::string& group_path,
                                                           int64_t rank, int64_t size,
                                                           int64_t local_rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "/.counters-%04lld", static_cast<long long>(local_rank));
  const std::string path = group_path + name;
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError("cannot remove the counters of an earlier process", path);
  }
  TSPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file,
                        MappedFile::Create(path, kRankPageBytes, kRankPageBytes));
  std::unique_ptr<RankCounters> counters(new RankCounters(std::move(file)));
  RankCountersHeader& header = counters->header();
  header.version = kVersion;
  header.counters = kRankCounters;
  header.pid = getpid();
  header.started = StartOfThisProcess();
  header.rank = rank;
  header.size = size;
  header.local_rank = local_rank;
  header.updated_ns.store(WallClockNs(), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = kMagic;  // last: readers take the page for complete
  return counters;
}

Result<std::unique_ptr<RankCounters>> RankCounters::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, OpenPage(path));
  TSPS_RETURN_IF_ERROR(file->MakeWritable());
  return std::unique_ptr<RankCounters>(new RankCounters(std::move(file)));
}

Result<RankReport> RankCounters::Read(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, OpenPage(path));
  const RankCountersHeader& header = *reinterpret_cast<RankCountersHeader*>(file->data());
  RankReport report;
  report.pid = header.pid;
  report.started = header.started;
  report.rank = header.rank;
  report.size = header.size;
  report.local_rank = header.local_rank;
  report.updated_ns = header.updated_ns.load(std::memory_order_acquire);
  char text[kRankTextBytes];
  for (size_t i = 0; i < kRankTextBytes / 8; ++i) {
    const uint64_t word = Words(file->data(), kRankTextOffset)[i].load(std::memory_order_relaxed);
    std::memcpy(text + 8 * i, &word, 8);
  }
  report.activity.assign(text, strnlen(text, kRankTextBytes));
  report.values.resize(std::min<size_t>(header.counters, kRankCounters));
  for (size_t i = 0; i < report.values.size(); ++i) {
    report.values[i] = Words(file->data(), kRankCountersOffset)[i].load(std::memory_order_relaxed);
  }
  return report;
}

const std::vector<std::string>& RankCounters::Names() {
  static const std::vector<std::string>* const names = new std::vector<std::string>{
#define TSPS_COUNTER_NAME(name) #name,
      TSPS_RANK_COUNTERS(TSPS_COUNTER_NAME)
#undef TSPS_COUNTER_NAME
  };
  return *names;
}

void RankCounters::Store(const uint64_t (&values)[kRankCounters]) {
  for (size_t i = 0; i < kRankCounters; ++i) {
    Words(file_->data(), kRankCountersOffset)[i].store(values[i], std::memory_order_relaxed);
  }
  header().updated_ns.store(WallClockNs(), std::memory_order_release);
}

void RankCounters::SetActivity(const std::string& text) {
  char padded[kRankTextBytes] = {};
  std::memcpy(padded, text.data(), std::min(text.size(), kRankTextBytes - 1));
  for (size_t i = 0; i < kRankTextBytes / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, padded + 8 * i, 8);
    Words(file_->data(), kRankTextOffset)[i].store(word, std::memory_order_relaxed);
  }
}

}  // namespace tsps
