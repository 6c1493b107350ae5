#include "core/group/row_gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/prefetch.h"
#include "core/group/row_copy.h"
#include "core/table/initializer.h"
#include "core/table/planes.h"
#include "core/table/row_type.h"

namespace tsps {
namespace {

constexpr size_t kGatherGrain = 2048;  // keys
constexpr size_t kInitialGrain = 64;   // rows

}  // namespace

RowGather::RowGather(std::shared_ptr<const TableConfig> config, int table, const int64_t* keys,
                     size_t n, bool numbers)
    : config_(std::move(config)),
      table_(table),
      keys_(keys),
      n_(n),
      row_bytes_(static_cast<size_t>(config_->dim) * ElementBytes(config_->row_type)),
      keep_numbers_(numbers),
      rows_(new const char*[n]) {}

void RowGather::Find(const ReadView& view, Executor& executor) {
  found_.epoch = view.epoch();
  found_.rows.resize(keep_numbers_ ? n_ : 0);
  found_.places.clear();
  executor.ParallelFor(n_, kGatherGrain, [&](size_t begin, size_t end) {
    uint32_t* const numbers = keep_numbers_ ? &found_.rows[begin] : nullptr;
    view.Find(table_, keys_ + begin, end - begin, &rows_[begin], numbers);
  });
  std::vector<uint32_t> absent;
  for (size_t i = 0; i < n_; ++i) {
    if (rows_[i] == nullptr) absent.push_back(static_cast<uint32_t>(i));
  }
  const auto read = [&](const int64_t* keys, size_t n, const auto& visit) {
    return view.ReadRecords(table_, keys, n, visit, &found_.places);
  };
  Fetch(std::move(absent), read, executor);
}

void RowGather::Fetch(std::vector<uint32_t> absent, const Read& read, Executor& executor) {
  if (!config_->storage.tiered() || absent.empty()) {
    return Initialize(std::move(absent), executor);
  }
  std::vector<int64_t> keys(absent.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = keys_[absent[i]];
  fetched_.resize(keys.size() * row_bytes_);
  std::vector<char> on_disk(keys.size());  // not bits, because threads write neighbouring ones
  // A record begins with the embedding.
  status_ = read(keys.data(), keys.size(), [&](size_t i, const char* payload) {
    std::memcpy(&fetched_[i * row_bytes_], payload, row_bytes_);
    on_disk[i] = 1;
  });
  std::vector<uint32_t> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (on_disk[i] == 0) missing.push_back(absent[i]);
    rows_[absent[i]] = &fetched_[i * row_bytes_];
  }
  Initialize(std::move(missing), executor);
}

void RowGather::Initialize(std::vector<uint32_t> absent, Executor& executor) {
  floats_.reset();
  if (absent != absent_) {
    absent_ = std::move(absent);
    initial_.reset(new char[absent_.size() * row_bytes_]);
    executor.ParallelFor(absent_.size(), kInitialGrain, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        InitialRow(*config_, keys_[absent_[i]], &initial_[i * row_bytes_]);
      }
    });
  }
  for (size_t i = 0; i < absent_.size(); ++i) rows_[absent_[i]] = &initial_[i * row_bytes_];
}

RowNumberCache::Found RowGather::TakeFound() { return std::move(found_); }

const float* const* RowGather::Floats(Executor& executor) {
  if (floats_ != nullptr) return floats_.get();
  const auto dim = static_cast<size_t>(config_->dim);
  floats_.reset(new const float*[n_]);
  if (!IsNarrow(config_->row_type)) {
    for (size_t i = 0; i < n_; ++i) floats_[i] = reinterpret_cast<const float*>(rows_[i]);
    return floats_.get();
  }
  if (widened_ == nullptr) widened_.reset(new float[n_ * dim]);
  CopyAll(widened_.get(), executor);
  for (size_t i = 0; i < n_; ++i) floats_[i] = &widened_[i * dim];
  return floats_.get();
}

void RowGather::CopyAll(float* out, Executor& executor) const {
  const auto dim = static_cast<size_t>(config_->dim);
  executor.ParallelFor(
      n_, std::max<size_t>(1, kCopyBytes / (dim * sizeof(float))), [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          PrefetchAhead<kAhead>(i, end, [&](size_t next) { Prefetch(rows_[next], row_bytes_); });
          ReadRow(config_->row_type, rows_[i], dim, /*stream=*/false, out + i * dim);
        }
      });
}

Status RowGather::Find(Scan& scan, Executor& executor) {
  found_.places.clear();
  found_.rows.clear();  // they may not be those of the newest state
  std::vector<uint32_t> numbers(n_);
  TSPS_RETURN_IF_ERROR(scan.Find(table_, keys_, n_, numbers.data(), executor));
  copies_.reset(new char[n_ * row_bytes_]);
  char* planes[kMaxPlanes] = {copies_.get()};
  TSPS_RETURN_IF_ERROR(scan.Copy(table_, numbers.data(), n_, planes, executor));
  std::vector<uint32_t> absent;
  for (size_t i = 0; i < n_; ++i) {
    rows_[i] = &copies_[i * row_bytes_];
    if (numbers[i] == kAbsentRow) absent.push_back(static_cast<uint32_t>(i));
  }
  const auto read = [&](const int64_t* keys, size_t n, const auto& visit) {
    return scan.ReadRecords(table_, keys, n, visit);
  };
  Fetch(std::move(absent), read, executor);
  return status_;
}

void RowGather::CopyRows(const int32_t* inverse, size_t n, float* out, Executor& executor) const {
  CopyRowsByPosition([this](int32_t position) { return rows_[position]; }, config_->row_type,
                     static_cast<size_t>(config_->dim), inverse, n, out, executor);
}

}  // namespace tsps
