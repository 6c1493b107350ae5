#include "core/exchange/rank_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "core/base/crc32c.h"
#include "core/base/futex.h"

namespace tsps {
namespace {

std::string PathOf(const std::string& folder, int local_rank) {
  char name[16];
  std::snprintf(name, sizeof(name), "/rank-%04d", local_rank);
  return folder + name;
}

uint32_t ExchangeLayoutHash() {
  const uint64_t sizes[] = {sizeof(ExchangeHeader),    sizeof(ExchangeLive),
                            sizeof(ExchangeCall),      sizeof(ExchangeVerdict),
                            sizeof(ExchangeStatement), kVerdictOffset,
                            kStatementOffset,          kCallOffset,
                            kContributionOffset,       uint64_t{kMaxTables}};
  return Crc32c(0, sizes, sizeof(sizes));
}

}  // namespace

void Advance(std::atomic<uint64_t>& word, uint64_t to) {
  word.store(to, std::memory_order_release);
  FutexWakeAll(word);
}

Result<std::unique_ptr<RankFile>> RankFile::Create(const std::string& folder, int local_rank,
                                                   int local_size, int64_t rank) {
  const std::string path = PathOf(folder, local_rank);
  auto file = std::make_unique<RankFile>();
  TSPS_ASSIGN_OR_RETURN(file->lock_,
                        FileLock::Acquire(path + ".lock", "another process is that rank"));
  // A failed attempt may have left these. Nobody can have opened them.
  unlink(path.c_str());
  unlink((path + ".merged").c_str());
  TSPS_ASSIGN_OR_RETURN(file->merged_, MappedFile::Create(path + ".merged", kPageBytes, SIZE_MAX));
  TSPS_ASSIGN_OR_RETURN(file->main_, MappedFile::Create(path, kContributionOffset, SIZE_MAX));
  file->live().pid.store(getpid());
  file->live().rank.store(static_cast<uint64_t>(rank));
  auto& header = *reinterpret_cast<ExchangeHeader*>(file->main_->data());
  header.version = kExchangeVersion;
  header.layout_hash = ExchangeLayoutHash();
  header.local_rank = static_cast<uint32_t>(local_rank);
  header.local_size = static_cast<uint32_t>(local_size);
  header.magic = kExchangeMagic;
  return file;
}

Result<std::unique_ptr<RankFile>> RankFile::Open(const std::string& folder, int local_rank,
                                                 int local_size) {
  const std::string path = PathOf(folder, local_rank);
  auto file = std::make_unique<RankFile>();
  TSPS_ASSIGN_OR_RETURN(file->main_, MappedFile::Open(path, kContributionOffset, SIZE_MAX));
  TSPS_ASSIGN_OR_RETURN(file->merged_, MappedFile::Open(path + ".merged", kPageBytes, SIZE_MAX));
  TSPS_ASSIGN_OR_RETURN(file->probe_, LockProbe::Open(path + ".lock"));
  const auto& header = *reinterpret_cast<const ExchangeHeader*>(file->main_->data());
  if (header.magic != kExchangeMagic) {
    return Error(Code::kDataLoss, path, " is not a rank's file of a tf_sparse_ps exchange");
  }
  if (header.version != kExchangeVersion || header.layout_hash != ExchangeLayoutHash()) {
    return Error(Code::kDataLoss, path, " is of another build of tf_sparse_ps (version ",
                 header.version, ", layout ", header.layout_hash, "; here version ",
                 kExchangeVersion, ", layout ", ExchangeLayoutHash(),
                 "): all ranks of a node must run the same");
  }
  if (header.local_size != static_cast<uint32_t>(local_size)) {
    return Error(Code::kDataLoss, path, " is of a node with ", header.local_size,
                 " ranks; this one has ", local_size);
  }
  return file;
}

Status RankFile::Check(MappedFile& file, size_t bytes) {
  if (bytes <= file.size() || bytes <= file.RefreshSize()) return Status();
  TSPS_RETURN_IF_ERROR(file.CheckRange(bytes));
  return Error(Code::kDataLoss, file.path(), " is truncated: ", file.size(), " bytes, ", bytes,
               " expected");
}

}  // namespace tsps
