#include "kernels/row_pulls.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "core/base/crc32c.h"

namespace tsps {
namespace {

// Returns the folder of an operation. The name of an operation may be longer than a file name, and
// have any characters, so the folder has a checksum of it.
std::string FolderOf(const std::string& folder, const std::string& operation) {
  char name[32];
  std::snprintf(name, sizeof(name), "/pull-%08x-%zu", Crc32c(0, operation.data(), operation.size()),
                operation.size());
  return folder + name;
}

}  // namespace

void RowPulls::Join(const std::string& folder, const NodeExchange::Options& options) {
  std::lock_guard<std::mutex> lock(mutex_);
  folder_ = folder;
  options_ = options;
}

Status RowPulls::With(const std::string& operation, uint32_t nodes, uint32_t node,
                      const std::function<Status(Pull&)>& use) {
  std::shared_ptr<Pull> pull;
  std::string folder;
  RowPull::Options options;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (folder_.empty()) {
      return Error(Code::kFailedPrecondition, "operation '", operation,
                   "' needs the exchange of its group. Run TspsJoinExchange first");
    }
    std::shared_ptr<Pull>& entry = pulls_[operation];
    if (entry == nullptr) entry = std::make_shared<Pull>();
    pull = entry;
    folder = FolderOf(folder_, operation);
    options.local_rank = options_.local_rank;
    options.local_size = options_.local_size;
    options.rank = options_.rank;
    options.mergers = options_.mergers;
    options.nodes = nodes;
    options.node = node;
  }
  std::lock_guard<std::mutex> lock(pull->mutex);
  if (pull->pull == nullptr) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoError("cannot make", folder);
    }
    TSPS_ASSIGN_OR_RETURN(pull->pull, RowPull::Create(folder, options));
  }
  return use(*pull);
}

RowsAhead& RowPulls::ahead(int table) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<RowsAhead>& entry = ahead_[table];
  if (entry == nullptr) entry = std::make_unique<RowsAhead>();
  return *entry;
}

bool RowPulls::Announced() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [table, ahead] : ahead_) {
    if (ahead->Announced()) return true;
  }
  return false;
}

RowsAhead::Counters RowPulls::counters() {
  RowsAhead::Counters sum;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [table, ahead] : ahead_) {
    const RowsAhead::Counters of_table = ahead->counters();
    sum.announced += of_table.announced;
    sum.dropped += of_table.dropped;
    sum.looked_up += of_table.looked_up;
    sum.ahead += of_table.ahead;
    sum.fetched += of_table.fetched;
  }
  return sum;
}

void RowPulls::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  folder_.clear();
  pulls_.clear();
}

}  // namespace tsps
