#include "core/exchange/rows_ahead.h"

#include <algorithm>
#include <utility>

#include "core/base/fault_point.h"

namespace tsps {
namespace {

constexpr size_t kSample = 32;         // keys by which a batch is recognised
constexpr size_t kMostStreams = 16;    // datasets that are remembered without a batch
constexpr size_t kMostKeys = 4 << 20;  // that are noted between two steps, as in a long evaluation

}  // namespace

void RowsAhead::DropFirst(Stream* stream) {
  stream->batches.pop_front();
  stream->told -= stream->told > 0 ? 1 : 0;
  ++counters_.dropped;
}

void RowsAhead::Announce(int64_t dataset, int64_t index, size_t pass, std::vector<int64_t> keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto stream = std::find_if(streams_.begin(), streams_.end(),
                             [&](const Stream& one) { return one.dataset == dataset; });
  if (stream == streams_.end()) {
    if (streams_.size() >= kMostStreams) {
      streams_.remove_if([](const Stream& one) { return one.batches.empty(); });
    }
    stream = streams_.insert(streams_.end(), Stream{dataset, pass, {}, 0});
  }
  while (index == 0 && !stream->batches.empty()) DropFirst(&*stream);
  ++counters_.announced;
  stream->pass = pass_ = std::max<size_t>(1, pass);
  stream->batches.push_back(std::move(keys));
  while (stream->batches.size() > 2 * stream->pass + 2) DropFirst(&*stream);
}

bool RowsAhead::Announced() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const Stream& one) { return !one.batches.empty(); });
}

void RowsAhead::LookUp(const int64_t* keys, size_t n, bool known) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!usable_) ahead_.Clear();  // the step that they were fetched beside was not made
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
    if (number == KeySet::kNone) continue;
    const float* const row = rows_.data() + number * dim;
    taken.rows.insert(taken.rows.end(), row, row + dim);
    taken.have[i] = 1;
    ++counters_.ahead;
  }
  return taken;
}

std::vector<int64_t> RowsAhead::Next() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!known_ || looked_up_.size() == 0) return {};
  const auto is_looked_up = [&](const std::vector<int64_t>& batch) {
    const size_t stride = std::max<size_t>(1, batch.size() / kSample);
    for (size_t i = 0; i < batch.size(); i += stride) {
      if (!looked_up_.Has(batch[i])) return false;
    }
    return true;
  };
  for (Stream& stream : streams_) {
    const auto found = std::find_if(stream.batches.begin(), stream.batches.end(), is_looked_up);
    if (found == stream.batches.end()) continue;
    counters_.dropped += static_cast<uint64_t>(found - stream.batches.begin());
    const auto past = static_cast<size_t>(found + 1 - stream.batches.begin());
    stream.batches.erase(stream.batches.begin(), found + 1);
    stream.told -= std::min(stream.told, past);
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
  KeySet keys;
  for (Stream& stream : streams_) {
    const size_t n = std::min(stream.batches.size() - stream.told, stream.pass);
    if (n < stream.pass && stream.told > 0) continue;
    for (size_t b = stream.told; b < stream.told + n; ++b) {
      keys.Reserve(stream.batches[b].size());
      for (const int64_t key : stream.batches[b]) keys.Add(key);
    }
    stream.told += n;
  }
  return keys.keys();
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
