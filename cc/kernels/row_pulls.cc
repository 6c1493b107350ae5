#include "kernels/row_pulls.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "core/base/crc32c.h"

namespace tsps {
namespace {

// An operation's name may have any characters, and more of them than a file's name.
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
  std::shared_ptr<Pull> found;
  std::string folder;
  RowPull::Options options;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (folder_.empty()) {
      return Error(Code::kFailedPrecondition, "operation '", operation,
                   "' needs the exchange of its group: TspsJoinExchange before");
    }
    std::shared_ptr<Pull>& entry = pulls_[operation];
    if (entry == nullptr) entry = std::make_shared<Pull>();
    found = entry;
    folder = FolderOf(folder_, operation);
    options.local_rank = options_.local_rank;
    options.local_size = options_.local_size;
    options.rank = options_.rank;
    options.mergers = options_.mergers;
    options.nodes = nodes;
    options.node = node;
  }
  std::lock_guard<std::mutex> lock(found->mutex);
  if (found->pull == nullptr) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoError("cannot make", folder);
    }
    TSPS_ASSIGN_OR_RETURN(found->pull, RowPull::Create(folder, options));
  }
  return use(*found);
}

RowsAhead& RowPulls::ahead(int table) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<RowsAhead>& found = ahead_[table];
  if (found == nullptr) found = std::make_unique<RowsAhead>();
  return *found;
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
    const RowsAhead::Counters one = ahead->counters();
    sum.announced += one.announced;
    sum.dropped += one.dropped;
    sum.looked_up += one.looked_up;
    sum.ahead += one.ahead;
    sum.fetched += one.fetched;
  }
  return sum;
}

void RowPulls::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  folder_.clear();
  pulls_.clear();
}

}  // namespace tsps
