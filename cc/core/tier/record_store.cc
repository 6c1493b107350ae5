#include "core/tier/record_store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/fault_point.h"

namespace tsps {
namespace {

// A log may have this many times the bytes of its live records, and two files more, before it pays
// to copy.
constexpr double kSlack = 1.4;
// How often a reader looks again where a record is that is not where it was.
constexpr int kAttempts = 5;

}  // namespace

Result<std::unique_ptr<RecordStore>> RecordStore::Create(const std::string& shared,
                                                         const std::string& disk,
                                                         RecordLayout layout, uint64_t seed,
                                                         IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  if (!log->Files().empty()) {
    return Error(Code::kAlreadyExists, disk, " has files of records already");
  }
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Create(shared, seed));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index)));
  TSPS_ASSIGN_OR_RETURN(store->moves_, RecordMoves::Create(shared));
  return store;
}

Result<std::unique_ptr<RecordStore>> RecordStore::Open(const std::string& shared,
                                                       const std::string& disk, RecordLayout layout,
                                                       uint64_t seed, IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Open(shared, seed));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index)));
  store->shared_ = shared;
  return store;
}

Status RecordStore::MakeWritable(uint32_t committed) {
  TSPS_RETURN_IF_ERROR(index_->MakeWritable(log_->layout().max_places()));
  TSPS_ASSIGN_OR_RETURN(moves_, RecordMoves::Open(shared_));
  TSPS_RETURN_IF_ERROR(moves_->Recover(committed, *index_));
  committed_ = committed;
  return CountLive();
}

Status RecordStore::CountLive() {
  live_.clear();
  index_->ForEach([this](uint64_t, uint32_t place) {
    const uint32_t file = log_->layout().file_of(place);
    if (live_.size() <= file) live_.resize(file + 1);
    ++live_[file];
  });
  const std::vector<uint32_t> files = log_->Files();
  for (uint32_t file = 0; file < live_.size(); ++file) {
    if (live_[file] > 0 && !std::binary_search(files.begin(), files.end(), file)) {
      return Error(Code::kDataLoss, RecordFile::PathOf(log_->folder(), file),
                   " is gone, which has ", live_[file], " rows of the table");
    }
  }
  for (const uint32_t file : files) {
    if (file < live_.size() && live_[file] > 0) continue;
    TSPS_RETURN_IF_ERROR(log_->RemoveFile(file));
  }
  return {};
}

void RecordStore::Enter(uint64_t tag, uint32_t place) {
  index_->Insert(tag, place);
  const uint32_t file = log_->layout().file_of(place);
  if (live_.size() <= file) live_.resize(file + 1);
  ++live_[file];
}

void RecordStore::Drop(uint64_t tag, uint32_t place) {
  if (index_->Remove(tag, place)) --live_[log_->layout().file_of(place)];
}

uint64_t RecordStore::live_bytes() const { return rows() * log_->layout().record_bytes; }

// --- Reading. ---

Status RecordStore::FindCandidates(const int64_t* keys, std::vector<Wanted>* wanted) const {
  std::vector<uint32_t> found;
  size_t kept = 0;
  for (Wanted& one : *wanted) {
    const uint64_t tag = TagOf(keys[one.i], index_->seed());
    if (!index_->Find(tag, &found)) {
      return Error(Code::kDataLoss, shared_,
                   ": the index of records is damaged, or grows too fast "
                   "to be read");
    }
    if (one.candidate >= found.size()) continue;
    one.place = found[one.candidate];
    (*wanted)[kept++] = one;
  }
  wanted->resize(kept);
  return {};
}

Status RecordStore::ReadCandidates(const int64_t* keys, bool urgent, std::vector<Wanted>* wanted,
                                   uint32_t* places, const Visit& visit) {
  std::vector<uint32_t> at(wanted->size());
  for (size_t w = 0; w < at.size(); ++w) at[w] = (*wanted)[w].place;
  std::vector<char> others(at.size());  // not bits: threads write side by side
  TSPS_RETURN_IF_ERROR(
      log_->Read(at.data(), at.size(), urgent, [&](size_t w, int64_t key, const char* payload) {
        const size_t i = (*wanted)[w].i;
        others[w] = key != keys[i];
        if (others[w]) return;
        places[i] = at[w];
        visit(i, payload);
      }));
  size_t kept = 0;
  for (size_t w = 0; w < at.size(); ++w) {
    if (!others[w]) continue;
    (*wanted)[kept] = (*wanted)[w];
    ++(*wanted)[kept++].candidate;
  }
  wanted->resize(kept);
  return {};
}

Status RecordStore::Read(const int64_t* keys, size_t n, bool urgent, uint32_t* places,
                         const Visit& visit) {
  std::vector<Wanted> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i].i = i;
  std::fill_n(places, n, kNoRecord);
  int attempts = 0;
  while (!wanted.empty()) {
    TSPS_RETURN_IF_ERROR(FindCandidates(keys, &wanted));
    const Status read = ReadCandidates(keys, urgent, &wanted, places, visit);
    if (read.ok()) continue;
    // Compaction may have copied a record, and removed its file.
    if (++attempts == kAttempts) return read;
    std::vector<Wanted> again = wanted;
    TSPS_RETURN_IF_ERROR(FindCandidates(keys, &again));
    const bool moved =
        again.size() != wanted.size() ||
        !std::equal(again.begin(), again.end(), wanted.begin(),
                    [](const Wanted& a, const Wanted& b) { return a.place == b.place; });
    if (!moved) return read;
  }
  return {};
}

// --- Moves. ---

// Where the record of a key is that was at `place`: compaction may have copied it since.
Result<uint32_t> RecordStore::PlaceNow(int64_t key, uint64_t tag, uint32_t place) {
  if (index_->Has(tag, place)) return place;
  uint32_t now = kNoRecord;
  TSPS_RETURN_IF_ERROR(Read(&key, 1, true, &now, [](size_t, const char*) {}));
  if (now == kNoRecord) return Error(Code::kInternal, "key ", key, " has no record any more");
  return now;
}

Status RecordStore::Leave(const Entering& entering, size_t n, const RecordLog::Fill& fill) {
  moving_ = std::unique_lock<std::mutex>(mutex_);
  const Status status = [&]() -> Status {
    entering_.clear();
    leaving_.clear();
    for (size_t i = 0; i < entering.n; ++i) {
      const uint64_t tag = TagOf(entering.keys[i], index_->seed());
      TSPS_ASSIGN_OR_RETURN(const uint32_t place,
                            PlaceNow(entering.keys[i], tag, entering.places[i]));
      entering_.push_back({tag, place});
    }
    std::vector<uint64_t> tags(n);
    std::vector<uint32_t> places(n);
    TSPS_RETURN_IF_ERROR(log_->Append(
        n,
        [&](size_t i, char* payload) {
          const int64_t key = fill(i, payload);
          tags[i] = TagOf(key, index_->seed());
          return key;
        },
        places.data()));
    for (size_t i = 0; i < n; ++i) leaving_.push_back({tags[i], places[i]});
    TSPS_RETURN_IF_ERROR(index_->Reserve(tags.data(), n));
    return moves_->Reserve(entering.n + n);
  }();
  if (!status.ok()) moving_.unlock();
  return status;
}

void RecordStore::Declare() {
  moves_->Declare(next_number(), entering_, leaving_);
  for (const RecordMove& move : leaving_) {
    Enter(move.tag, move.place);
    TSPS_FAULT_POINT("record_store_entered_one");
  }
}

void RecordStore::Finish(bool published) {
  if (published) ++committed_;
  for (const RecordMove& move : published ? entering_ : leaving_) {
    Drop(move.tag, move.place);
    TSPS_FAULT_POINT("record_store_dropped_one");
  }
  moves_->Clear();
  entering_.clear();
  leaving_.clear();
  moving_.unlock();
}

// --- Compaction. ---

uint32_t RecordStore::FileToCompact() const {
  const RecordLayout& layout = log_->layout();
  const double live = static_cast<double>(index_->live() * layout.record_bytes);
  if (static_cast<double>(log_->bytes()) <=
      kSlack * live + 2 * static_cast<double>(layout.file_end())) {
    return UINT32_MAX;
  }
  uint32_t best = UINT32_MAX, least = UINT32_MAX;
  for (const uint32_t file : log_->Files()) {
    const uint32_t live_here = file < live_.size() ? live_[file] : 0;
    if (file == log_->current_file() || live_here >= least) continue;
    best = file;
    least = live_here;
  }
  return best;
}

Result<bool> RecordStore::CompactSome(size_t bytes) {
  const RecordLayout& layout = log_->layout();
  uint32_t file, slot;
  bool nothing_lives = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (compaction_.file == UINT32_MAX) compaction_ = {FileToCompact(), 0};
    file = compaction_.file;
    slot = compaction_.slot;
    if (file != UINT32_MAX) nothing_lives = file >= live_.size() || live_[file] == 0;
    if (nothing_lives) compaction_ = {};
  }
  if (file == UINT32_MAX) return false;
  if (nothing_lives) {
    TSPS_FAULT_POINT("record_store_compacted");
    TSPS_RETURN_IF_ERROR(log_->RemoveFile(file));
    return true;
  }

  const size_t left = layout.records_per_file - slot;
  const auto n = static_cast<uint32_t>(std::clamp<size_t>(bytes / layout.record_bytes, 1, left));
  struct Copy {
    uint32_t place;
    int64_t key;
    size_t payload;
  };
  std::vector<Copy> copies;
  std::vector<char> payloads;
  TSPS_RETURN_IF_ERROR(
      log_->ReadSlots(file, slot, n, [&](uint32_t place, int64_t key, const char* payload) {
        copies.push_back({place, key, payloads.size()});
        payloads.insert(payloads.end(), payload, payload + layout.payload_bytes);
      }));

  const std::lock_guard<std::mutex> lock(mutex_);
  const auto dead = [&](const Copy& one) {
    return !index_->Has(TagOf(one.key, index_->seed()), one.place);
  };
  copies.erase(std::remove_if(copies.begin(), copies.end(), dead), copies.end());
  std::vector<uint32_t> places(copies.size());
  TSPS_RETURN_IF_ERROR(log_->Append(
      copies.size(),
      [&](size_t i, char* payload) {
        std::copy_n(payloads.data() + copies[i].payload, layout.payload_bytes, payload);
        return copies[i].key;
      },
      places.data()));
  for (size_t i = 0; i < copies.size(); ++i) {
    TSPS_FAULT_POINT("record_store_compacted_one");
    index_->Replace(TagOf(copies[i].key, index_->seed()), copies[i].place, places[i]);
    --live_[file];
    const uint32_t to = layout.file_of(places[i]);
    if (live_.size() <= to) live_.resize(to + 1);
    ++live_[to];
  }
  compaction_.slot += n;
  if (compaction_.slot < layout.records_per_file) return true;
  compaction_ = {};
  if (file < live_.size() && live_[file] > 0) {
    return Damaged(RecordFile::PathOf(log_->folder(), file), live_[file],
                   " of its records that the table needs cannot be read");
  }
  TSPS_FAULT_POINT("record_store_compacted");
  TSPS_RETURN_IF_ERROR(log_->RemoveFile(file));
  return true;
}

}  // namespace tsps
