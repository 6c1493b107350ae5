#include "core/tier/record_store.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/fault_point.h"
#include "core/tier/removed_folder.h"

namespace tsps {
namespace {

// The number of times that a read may find a record moved.
constexpr int kAttempts = 5;
// The distance of prefetches in the index.
constexpr size_t kAhead = 8;

}  // namespace

Result<std::unique_ptr<RecordStore>> RecordStore::Create(const std::string& shared,
                                                         const std::string& disk,
                                                         RecordLayout layout, uint64_t seed,
                                                         const Memory& memory, IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  if (!log->Files().empty()) {
    return Error(Code::kAlreadyExists, disk,
                 " contains files of records already. They were not changed. Give the table an "
                 "empty storage folder, or remove these files");
  }
  TSPS_ASSIGN_OR_RETURN(auto cache, RecordCache::Create(shared, log->layout(), memory.cache_bytes));
  log->UseCache(std::move(cache));
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Create(shared, seed));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index)));
  store->shared_ = shared;
  TSPS_ASSIGN_OR_RETURN(store->moves_, RecordMoves::Create(shared));
  TSPS_ASSIGN_OR_RETURN(store->announced_, AnnouncedRows::Create(shared, memory.rows));
  return store;
}

Result<std::unique_ptr<RecordStore>> RecordStore::Open(const std::string& shared,
                                                       const std::string& disk, RecordLayout layout,
                                                       uint64_t seed, const Memory& memory,
                                                       IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  TSPS_ASSIGN_OR_RETURN(auto cache, RecordCache::Open(shared, log->layout(), memory.cache_bytes));
  log->UseCache(std::move(cache));
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Open(shared, seed));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index)));
  store->shared_ = shared;
  TSPS_ASSIGN_OR_RETURN(store->moves_, RecordMoves::Open(shared));
  TSPS_ASSIGN_OR_RETURN(store->announced_, AnnouncedRows::Open(shared, memory.rows));
  return store;
}

Status RecordStore::MakeWritable(uint32_t committed) {
  TSPS_RETURN_IF_ERROR(index_->MakeWritable(log_->layout().max_places()));
  TSPS_RETURN_IF_ERROR(moves_->MakeWritable());
  TSPS_RETURN_IF_ERROR(moves_->Recover(committed, *index_));
  committed_ = committed;
  TSPS_RETURN_IF_ERROR(CountLive());
  RecordState state;
  TSPS_ASSIGN_OR_RETURN(const bool known, moves_->StateOf(committed, &state));
  if (!known || state.rows != rows()) {
    return Damaged(shared_ + "/records.moves", "it has no state with number ", committed, " and ",
                   rows(), " rows, which the index has");
  }
  last_ = state.last;
  return {};
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
      return Error(Code::kDataLoss, RecordFile::PathOf(log_->folder(), file), " was deleted, and ",
                   live_[file],
                   " rows of the table with it. The table cannot be opened. Remove the job's "
                   "folder in shared memory (/dev/shm or TFSPS_DIR), and start from the newest "
                   "checkpoint");
    }
  }
  if (!files.empty() && live_.size() <= files.back()) live_.resize(files.back() + 1);
  emptied_.clear();
  for (const uint32_t file : files) {
    if (live_[file] == 0) emptied_.push_back(file);  // not removed yet: a scan may need the file
  }
  return {};
}

void RecordStore::Enter(uint64_t tag, uint32_t place) {
  index_->Insert(tag, place);
  ++live_[log_->layout().file_of(place)];
}

void RecordStore::Drop(uint64_t tag, uint32_t place) {
  if (!index_->Remove(tag, place)) return;
  const uint32_t file = log_->layout().file_of(place);
  if (--live_[file] == 0) emptied_.push_back(file);
}

Result<bool> RecordStore::RowsOf(uint32_t committed, uint64_t* rows) const {
  RecordState state;
  TSPS_ASSIGN_OR_RETURN(const bool known, moves_->StateOf(committed, &state));
  if (known) *rows = state.rows;
  return known;
}

std::vector<MappedFile*> RecordStore::LargeFiles() const {
  std::vector<MappedFile*> files = {index_->pages(), announced_->file()};
  const RecordCache* const cache = log_->cache();
  if (cache != nullptr && cache->file() != nullptr) files.push_back(cache->file());
  return files;
}

// --- Reading. ---

Status RecordStore::FindCandidates(const int64_t* keys, std::vector<Wanted>* wanted) const {
  std::vector<uint32_t> candidates;
  size_t kept = 0;
  for (size_t w = 0; w < wanted->size(); ++w) {
    if (w + kAhead < wanted->size()) {
      index_->Prefetch(TagOf(keys[(*wanted)[w + kAhead].i], index_->seed()));
    }
    Wanted key = (*wanted)[w];
    const uint64_t tag = TagOf(keys[key.i], index_->seed());
    if (!index_->Find(tag, &candidates)) {
      return Error(Code::kDataLoss, shared_,
                   ": the index of records is damaged, or grows too fast "
                   "to be read");
    }
    if (key.candidate >= candidates.size()) continue;
    key.place = candidates[key.candidate];
    (*wanted)[kept++] = key;
  }
  wanted->resize(kept);
  return {};
}

Status RecordStore::ReadCandidates(const int64_t* keys, bool urgent, std::vector<Wanted>* wanted,
                                   uint32_t* places, const Visit& visit) {
  std::vector<uint32_t> at(wanted->size());
  for (size_t w = 0; w < at.size(); ++w) at[w] = (*wanted)[w].place;
  std::vector<char> mismatched(at.size());  // not std::vector<bool>: threads write neighbors
  TSPS_RETURN_IF_ERROR(
      log_->Read(at.data(), at.size(), urgent, [&](size_t w, int64_t key, const char* payload) {
        const size_t i = (*wanted)[w].i;
        mismatched[w] = key != keys[i];
        if (mismatched[w]) return;
        places[i] = at[w];
        visit(i, payload);
      }));
  size_t kept = 0;
  for (size_t w = 0; w < at.size(); ++w) {
    if (!mismatched[w]) continue;
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
  return ReadWanted(keys, urgent, std::move(wanted), places, visit);
}

Status RecordStore::ReadAgain(const int64_t* keys, size_t n, bool urgent, uint32_t* places,
                              const Visit& visit) {
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < n; ++i) {
    if (places[i] != kNoRecord) wanted.push_back({i, 0, places[i]});
  }
  const std::vector<Wanted> all = wanted;
  for (const Wanted& key : all) places[key.i] = kNoRecord;
  const Status read = ReadCandidates(keys, urgent, &wanted, places, visit);
  if (!read.ok()) wanted = all;
  for (Wanted& key : wanted) key.candidate = 0;
  return ReadWanted(keys, urgent, std::move(wanted), places, visit);
}

Status RecordStore::ReadWanted(const int64_t* keys, bool urgent, std::vector<Wanted> wanted,
                               uint32_t* places, const Visit& visit) {
  int attempts = 0;
  while (!wanted.empty()) {
    TSPS_RETURN_IF_ERROR(FindCandidates(keys, &wanted));
    const Status read = ReadCandidates(keys, urgent, &wanted, places, visit);
    if (read.ok()) continue;
    // Compaction may have copied a record and removed its file.
    if (++attempts == kAttempts) return read;
    std::vector<Wanted> again = wanted;
    TSPS_RETURN_IF_ERROR(FindCandidates(keys, &again));
    const bool moved =
        again.size() != wanted.size() ||
        !std::equal(again.begin(), again.end(), wanted.begin(),
                    [](const Wanted& a, const Wanted& b) { return a.place == b.place; });
    if (moved) continue;
    if (read.code() != Code::kNotFound) return read;
    return RemovedFolderOr(log_->folder(),
                           Error(Code::kDataLoss, read.message(),
                                 ". The file contained rows of the table, which are lost. Start "
                                 "from the newest checkpoint"));
  }
  return {};
}

Status RecordStore::Stage(const int64_t* keys, size_t n) {
  constexpr size_t kAtOnce = size_t{1} << 16;  // the plan of a read takes about 100 bytes per place
  std::vector<uint32_t> places, candidates;
  places.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) index_->Prefetch(TagOf(keys[i + kAhead], index_->seed()));
    // A lookup of the row reports the error.
    if (!index_->Find(TagOf(keys[i], index_->seed()), &candidates)) continue;
    places.insert(places.end(), candidates.begin(), candidates.end());
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (size_t begin = 0; begin < places.size(); begin += kAtOnce) {
    const size_t m = std::min(kAtOnce, places.size() - begin);
    const Status read =
        log_->Read(places.data() + begin, m, /*urgent=*/false, [](size_t, int64_t, const char*) {});
    // Compaction may have removed a file.
    if (!read.ok() && read.code() != Code::kNotFound) return read;
  }
  return {};
}

// --- Moves. ---

Result<uint32_t> RecordStore::PlaceNow(int64_t key, uint64_t tag, uint32_t place) {
  if (index_->Has(tag, place)) return place;
  uint32_t now = kNoRecord;
  TSPS_RETURN_IF_ERROR(Read(&key, 1, true, &now, [](size_t, const char*) {}));
  if (now == kNoRecord) {
    return Error(Code::kInternal, "the record of key ", key, " in ", log_->folder(),
                 " disappeared during a step");
  }
  return now;
}

void RecordStore::ChooseCopies() {
  copies_.clear();
  slice_ = compaction_.Ready();
  if (slice_ == nullptr) return;
  std::unordered_set<uint32_t> coming;
  for (const RecordMove& move : entering_) coming.insert(move.place);
  for (size_t i = 0; i < slice_->copies.size(); ++i) {
    const Compaction::Slice::Copy& copy = slice_->copies[i];
    if (i + kAhead < slice_->copies.size()) {
      index_->Prefetch(TagOf(slice_->copies[i + kAhead].key, index_->seed()));
    }
    if (coming.count(copy.place) != 0) continue;
    if (index_->Has(TagOf(copy.key, index_->seed()), copy.place)) copies_.push_back(&copy);
  }
}

// Appends the rows that leave memory, and then compaction's copies.
Status RecordStore::Append(size_t n, const RecordLog::Fill& fill) {
  const size_t all = n + copies_.size();
  std::vector<uint64_t> tags(all);
  std::vector<uint32_t> places(all);
  TSPS_RETURN_IF_ERROR(log_->Append(
      all,
      [&](size_t i, char* payload) {
        int64_t key;
        if (i < n) {
          key = fill(i, payload);
        } else {
          const Compaction::Slice::Copy& copy = *copies_[i - n];
          std::copy_n(copy.payload, log_->layout().payload_bytes, payload);
          key = copy.key;
        }
        tags[i] = TagOf(key, index_->seed());
        return key;
      },
      places.data()));
  for (size_t i = 0; i < all; ++i) leaving_.push_back({tags[i], places[i]});
  for (size_t i = n; i < all; ++i) entering_.push_back({tags[i], copies_[i - n]->place});
  for (const uint32_t place : places) {
    live_.resize(std::max<size_t>(live_.size(), log_->layout().file_of(place) + 1));
  }
  emptied_.reserve(emptied_.size() + live_.size());  // each file becomes empty at most once
  return index_->Reserve(tags.data(), all);
}

Status RecordStore::Leave(const Entering& entering, size_t n, const RecordLog::Fill& fill) {
  entering_.clear();
  leaving_.clear();
  for (size_t i = 0; i < entering.n; ++i) {
    if (i + kAhead < entering.n) {
      index_->Prefetch(TagOf(entering.keys[i + kAhead], index_->seed()));
    }
    const uint64_t tag = TagOf(entering.keys[i], index_->seed());
    TSPS_ASSIGN_OR_RETURN(const uint32_t place,
                          PlaceNow(entering.keys[i], tag, entering.places[i]));
    entering_.push_back({tag, place});
  }
  ChooseCopies();
  TSPS_RETURN_IF_ERROR(Append(n, fill));
  return moves_->Reserve(entering_.size() + leaving_.size());
}

void RecordStore::Declare() {
  const uint32_t last = leaving_.empty() ? last_ : leaving_.back().place;
  const RecordState next{next_number(), last, rows() + leaving_.size() - entering_.size()};
  moves_->Declare(next, entering_, leaving_);
  for (size_t i = 0; i < leaving_.size(); ++i) {
    if (i + kAhead < leaving_.size()) index_->Prefetch(leaving_[i + kAhead].tag);
    Enter(leaving_[i].tag, leaving_[i].place);
    TSPS_FAULT_POINT("record_store_entered_one");
  }
}

// Updates the cache: removes the records of rows that entered memory, and moves those that
// compaction copied.
void RecordStore::MoveCached() {
  RecordCache* const cache = log_->cache();
  if (cache == nullptr) return;
  const size_t rows = entering_.size() - copies_.size(), first = leaving_.size() - copies_.size();
  for (size_t i = 0; i < entering_.size(); ++i) {
    if (i + kAhead < entering_.size()) cache->Prefetch(entering_[i + kAhead].place);
    if (i < rows) {
      cache->Remove(entering_[i].place);
    } else {
      cache->Move(entering_[i].place, leaving_[first + i - rows].place);
    }
  }
}

void RecordStore::Finish(bool published) {
  if (published) {
    ++committed_;
    if (!leaving_.empty()) last_ = leaving_.back().place;
  }
  if (published) MoveCached();
  const std::vector<RecordMove>& dropped = published ? entering_ : leaving_;
  for (size_t i = 0; i < dropped.size(); ++i) {
    if (i + kAhead < dropped.size()) index_->Prefetch(dropped[i + kAhead].tag);
    Drop(dropped[i].tag, dropped[i].place);
    TSPS_FAULT_POINT("record_store_dropped_one");
  }
  moves_->Clear();
  entering_.clear();
  leaving_.clear();
  compaction_.Done(published && slice_ != nullptr);
  slice_ = nullptr;
}

void RecordStore::RemoveEmptied() {
  size_t kept = 0;
  for (const uint32_t file : emptied_) {
    const bool empty = live_[file] == 0 && file != log_->current_file();
    if (live_[file] > 0) continue;
    // After an error, the next call tries to remove the file again.
    if (!empty || compaction_.IsReading(file) || !log_->RemoveFile(file).ok()) {
      emptied_[kept++] = file;
      continue;
    }
    compaction_.Forget(file);
    TSPS_FAULT_POINT("record_store_compacted");
  }
  emptied_.resize(kept);
}

}  // namespace tsps
