#include "core/group/row_gather.h"

#include <algorithm>
#include <utility>

#include "core/base/prefetch.h"
#include "core/base/racy_copy.h"
#include "core/base/stream_copy.h"
#include "core/table/initializer.h"
#include "core/table/table_checks.h"

namespace tsps {
namespace {

constexpr size_t kProbeGrain = 2048;    // keys
constexpr size_t kInitialGrain = 64;    // rows
constexpr size_t kCopyBytes = 1 << 18;  // a range's share of the output

// Rows fetched ahead of the one being copied. The row's address itself comes from a cached array.
constexpr size_t kAhead = 32;

}  // namespace

RowGather::RowGather(std::shared_ptr<const TableConfig> config, int table, const int64_t* keys,
                     size_t n)
    : config_(std::move(config)), table_(table), keys_(keys), n_(n), rows_(new const float*[n]) {}

void RowGather::Find(const ReadView& view, Executor& executor) {
  executor.ParallelFor(n_, kProbeGrain, [&](size_t begin, size_t end) {
    view.Find(table_, keys_ + begin, end - begin, &rows_[begin]);
  });
  std::vector<uint32_t> absent;
  for (size_t i = 0; i < n_; ++i) {
    if (rows_[i] == nullptr) absent.push_back(static_cast<uint32_t>(i));
  }
  elsewhere_ = view.AbsentElsewhere(table_);
  Initialize(std::move(absent), executor);
}

void RowGather::Initialize(std::vector<uint32_t> absent, Executor& executor) {
  const size_t dim = static_cast<size_t>(config_->dim);
  if (absent != absent_) {
    absent_ = std::move(absent);
    initial_.reset(new float[absent_.size() * dim]);
    executor.ParallelFor(absent_.size(), kInitialGrain, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        InitialRow(config_->initializer, keys_[absent_[i]], dim, &initial_[i * dim]);
      }
    });
  }
  for (size_t i = 0; i < absent_.size(); ++i) rows_[absent_[i]] = &initial_[i * dim];
}

Status RowGather::CheckPresent() const {
  if (!elsewhere_ || absent_.empty()) return Status();
  return AskTheOtherTier(config_->name, keys_[absent_.front()]);
}

void RowGather::CopyAll(float* out, Executor& executor) const {
  const size_t dim = static_cast<size_t>(config_->dim);
  executor.ParallelFor(n_, std::max<size_t>(1, kCopyBytes / (dim * sizeof(float))),
                       [&](size_t begin, size_t end) {
                         for (size_t i = begin; i < end; ++i) {
                           RacyRead(out + i * dim, rows_[i], dim * sizeof(float));
                         }
                       });
}

Status RowGather::Find(Scan& scan, Executor& executor) {
  const size_t dim = static_cast<size_t>(config_->dim);
  std::vector<uint32_t> numbers(n_);
  TSPS_RETURN_IF_ERROR(scan.Find(table_, keys_, n_, numbers.data(), executor));
  copies_.reset(new float[n_ * dim]);
  char* planes[kMaxPlanes] = {reinterpret_cast<char*>(copies_.get())};
  TSPS_RETURN_IF_ERROR(scan.Copy(table_, numbers.data(), n_, planes, executor));
  std::vector<uint32_t> absent;
  for (size_t i = 0; i < n_; ++i) {
    rows_[i] = &copies_[i * dim];
    if (numbers[i] == kAbsentRow) absent.push_back(static_cast<uint32_t>(i));
  }
  elsewhere_ = (scan.StateOf(table_).flags & kTableAbsentElsewhere) != 0;
  Initialize(std::move(absent), executor);
  return Status();
}

void CopyRows(const float* const* rows, const int32_t* inverse, size_t n, size_t dim, float* out,
              Executor& executor) {
  const size_t bytes = dim * sizeof(float);
  const bool stream = n * bytes >= kStreamedBytes && CanStream(out, bytes);
  executor.ParallelFor(n, std::max<size_t>(1, kCopyBytes / bytes), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, begin + kAhead); ++i) {
      Prefetch(rows[inverse[i]], bytes);
    }
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end) Prefetch(rows[inverse[i + kAhead]], bytes);
      if (stream) {
        StreamCopy(out + i * dim, rows[inverse[i]], bytes);
      } else {
        RacyRead(out + i * dim, rows[inverse[i]], bytes);
      }
    }
    if (stream) StreamFence();
  });
}

}  // namespace tsps
