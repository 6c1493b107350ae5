#include "core/exchange/rows_ahead.h"

#include <algorithm>
#include <utility>

#include "core/base/fault_point.h"

namespace tsps {
namespace {

constexpr size_t kSample = 32;         // keys by which a batch is recognised
constexpr size_t kMostKeys = 4 << 20;  // recorded between two steps, as in a long evaluation

}  // namespace

void RowsAhead::DropFirst(Stream& stream, size_t n) {
  stream.batches.DropFirst(n, [&](const auto&) { ++counters_.dropped; });
  stream.n_passed -= std::min(stream.n_passed, n);
}

void RowsAhead::Announce(int64_t dataset, int64_t index, size_t pass, std::vector<int64_t> keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream& stream = streams_.Find(
      [&](const Stream& candidate) { return candidate.dataset == dataset; }, Stream{dataset});
  ++counters_.announced;
  stream.pass = pass_ = std::max<size_t>(1, pass);
  if (stream.batches.Begin(index, [&](const auto&) { ++counters_.dropped; })) stream.n_passed = 0;
  stream.batches.Add(std::move(keys));
  const size_t most = 2 * stream.pass + 2;
  DropFirst(stream, stream.batches.size() - std::min(stream.batches.size(), most));
}

bool RowsAhead::Announced() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.AnyBatch();
}

void RowsAhead::LookUp(const int64_t* keys, size_t n, bool known) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!usable_) ahead_.Clear();  // the step was not made during which they arrived
  known_ = known_ && known && looked_up_.size() + n <= kMostKeys;
  if (!known_) return;
  looked_up_.Reserve(n);
  for (size_t i = 0; i < n; ++i) looked_up_.Add(keys[i]);
}

void RowsAhead::CountLookUps(size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.looked_up += n;
}

bool RowsAhead::known() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return known_;
}

RowsAhead::Taken RowsAhead::Take(const int64_t* keys, size_t n, size_t dim, uint64_t version) {
  Taken taken;
  taken.have.resize(n);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!usable_ || dim != dim_ || version != version_) return taken;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t number = ahead_.NumberOf(keys[i]);
    if (number == KeyNumbers::kNone) continue;
    const float* const row = rows_.data() + number * dim;
    taken.rows.insert(taken.rows.end(), row, row + dim);
    taken.have[i] = 1;
    ++counters_.ahead;
  }
  return taken;
}

bool RowsAhead::IsLookedUp(const std::vector<int64_t>& batch) const {
  const size_t stride = std::max<size_t>(1, batch.size() / kSample);
  for (size_t i = 0; i < batch.size(); i += stride) {
    if (!looked_up_.Has(batch[i])) return false;
  }
  return true;
}

std::vector<int64_t> RowsAhead::Next() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!known_ || looked_up_.size() == 0) return {};
  for (Stream& stream : streams_) {
    const auto current =
        std::find_if(stream.batches.begin(), stream.batches.end(),
                     [&](const std::vector<int64_t>& batch) { return IsLookedUp(batch); });
    if (current == stream.batches.end()) continue;
    DropFirst(stream, static_cast<size_t>(current - stream.batches.begin()));
    stream.batches.TakeFirst();
    stream.n_passed -= std::min<size_t>(stream.n_passed, 1);
    if (stream.batches.empty()) return {};
    std::vector<int64_t> next;
    for (const int64_t key : stream.batches.front()) {
      if (!looked_up_.Has(key)) next.push_back(key);
    }
    return next;
  }
  return {};
}

std::vector<int64_t> RowsAhead::NextPass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  KeyNumbers keys;
  for (Stream& stream : streams_) {
    const size_t n = std::min(stream.batches.size() - stream.n_passed, stream.pass);
    if (n < stream.pass && stream.n_passed > 0) continue;
    for (size_t b = stream.n_passed; b < stream.n_passed + n; ++b) {
      keys.Reserve(stream.batches[b].size());
      for (const int64_t key : stream.batches[b]) keys.Add(key);
    }
    stream.n_passed += n;
  }
  return keys.Keys();
}

size_t RowsAhead::pass() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pass_;
}

void RowsAhead::Keep(const std::vector<int64_t>& keys, const std::vector<uint8_t>& present,
                     const std::vector<float>& rows, size_t dim, uint64_t version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  usable_ = false;
  ahead_.Clear();
  rows_.clear();
  dim_ = dim;
  version_ = version;
  ahead_.Reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (present[i] == 0) continue;
    ahead_.Add(keys[i]);
    rows_.insert(rows_.end(), rows.begin() + static_cast<ptrdiff_t>(i * dim),
                 rows.begin() + static_cast<ptrdiff_t>((i + 1) * dim));
  }
  counters_.fetched += ahead_.size();
}

bool RowsAhead::LookedUp(const int64_t* keys, size_t n, int64_t* missing) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What is not known was not announced to owners as such, and they have sent nothing ahead.
  for (size_t i = 0; known_ && i < n; ++i) {
    if (looked_up_.Has(keys[i])) continue;
    *missing = keys[i];
    return false;
  }
  return true;
}

void RowsAhead::LookUpHere(const std::vector<int64_t>& keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_ = known_ && here_.size() + keys.size() <= kMostKeys;
  if (!known_) return;
  here_.Reserve(keys.size());
  for (const int64_t key : keys) here_.Add(key);
}

std::vector<uint8_t> RowsAhead::Stays(const std::vector<int64_t>& keys) const {
  std::vector<uint8_t> stays(keys.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!known_) return stays;
  for (size_t i = 0; i < keys.size(); ++i) {
    stays[i] = !here_.Has(keys[i]) || TSPS_FAULT_OFF("rows_that_stay");
  }
  return stays;
}

void RowsAhead::Sent(const std::vector<int64_t>& keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sent_.insert(sent_.end(), keys.begin(), keys.end());
}

void RowsAhead::StepMade() {
  const std::lock_guard<std::mutex> lock(mutex_);
  looked_up_.Clear();
  here_.Clear();
  here_.Reserve(sent_.size());
  for (const int64_t key : sent_) {
    if (!TSPS_FAULT_OFF("rows_sent")) here_.Add(key);
  }
  sent_.clear();
  known_ = true;
  usable_ = (!usable_ || TSPS_FAULT_OFF("rows_of_one_step")) && ahead_.size() > 0;
  if (!usable_) ahead_.Clear();
}

RowsAhead::Counters RowsAhead::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace tsps
