#include "core/group/row_gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/prefetch.h"
#include "core/gradients/key_numbers.h"
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
  Fill(std::move(absent), read, executor);
}

void RowGather::Fill(std::vector<uint32_t> absent, const Read& read, Executor& executor) {
  floats_.reset();
  if (absent != absent_) {
    absent_ = std::move(absent);
    NumberAbsentKeys();
  }
  std::vector<const char*> rows(absent_keys_.size());
  if (config_->storage.tiered() && !absent_keys_.empty()) FetchRows(read, &rows);
  Initialize(&rows, executor);
  for (size_t i = 0; i < absent_.size(); ++i) rows_[absent_[i]] = rows[key_of_absent_[i]];
}

void RowGather::NumberAbsentKeys() {
  KeyNumbers numbers(absent_.size());
  key_of_absent_.resize(absent_.size());
  for (size_t i = 0; i < absent_.size(); ++i) key_of_absent_[i] = numbers.Add(keys_[absent_[i]]);
  absent_keys_ = numbers.Keys();
  initial_keys_.clear();
  initial_.reset();
}

void RowGather::FetchRows(const Read& read, std::vector<const char*>* rows) {
  fetched_.resize(absent_keys_.size() * row_bytes_);
  std::vector<char> on_disk(absent_keys_.size());  // not bits, because threads write neighbors
  // A record begins with the embedding.
  status_ = read(absent_keys_.data(), absent_keys_.size(), [&](size_t key, const char* payload) {
    std::memcpy(&fetched_[key * row_bytes_], payload, row_bytes_);
    on_disk[key] = 1;
  });
  for (size_t key = 0; key < rows->size(); ++key) {
    if (on_disk[key] != 0) (*rows)[key] = &fetched_[key * row_bytes_];
  }
}

void RowGather::Initialize(std::vector<const char*>* rows, Executor& executor) {
  std::vector<uint32_t> missing;
  for (size_t key = 0; key < rows->size(); ++key) {
    if ((*rows)[key] == nullptr) missing.push_back(static_cast<uint32_t>(key));
  }
  if (missing != initial_keys_) {
    initial_keys_ = std::move(missing);
    initial_.reset(new char[initial_keys_.size() * row_bytes_]);
    executor.ParallelFor(initial_keys_.size(), kInitialGrain, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        InitialRow(*config_, absent_keys_[initial_keys_[i]], &initial_[i * row_bytes_]);
      }
    });
  }
  for (size_t i = 0; i < initial_keys_.size(); ++i) {
    (*rows)[initial_keys_[i]] = &initial_[i * row_bytes_];
  }
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
  tsps::CopyRows([this](size_t i) { return rows_[i]; }, config_->row_type,
                 static_cast<size_t>(config_->dim), n_, out, executor);
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
  Fill(std::move(absent), read, executor);
  return status_;
}

Status RowGather::Find(
    const std::function<Status(const int64_t* keys, size_t n, float* rows)>& look_up) {
  copies_.reset(new char[n_ * row_bytes_]);
  floats_.reset();
  TSPS_RETURN_IF_ERROR(look_up(keys_, n_, reinterpret_cast<float*>(copies_.get())));
  for (size_t i = 0; i < n_; ++i) rows_[i] = &copies_[i * row_bytes_];
  return Status();
}

void RowGather::CopyRows(const int32_t* inverse, size_t n, float* out, Executor& executor) const {
  tsps::CopyRows([this, inverse](size_t i) { return rows_[inverse[i]]; }, config_->row_type,
                 static_cast<size_t>(config_->dim), n, out, executor);
}

}  // namespace tsps
