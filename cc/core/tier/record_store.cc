#include "core/tier/record_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/tier/removed_folder.h"

namespace tsps {
namespace {

// The number of times that a read may find a record moved.
constexpr int kAttempts = 5;
// The distance of prefetches in the index.
constexpr size_t kAhead = 8;
constexpr uint64_t kPlaceCopiesNs = 1'000'000;
constexpr size_t kCopiesPerLook = 64;  // at the clock

}  // namespace

Result<std::unique_ptr<RecordStore>> RecordStore::Create(const std::string& shared,
                                                         const std::string& disk,
                                                         RecordLayout layout, uint64_t seed,
                                                         const Memory& memory, IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  if (!RecordFilesIn(disk).empty()) {
    return Error(Code::kAlreadyExists, disk,
                 " contains files of records already. They were not changed. Give the table an "
                 "empty storage folder, or remove these files");
  }
  TSPS_ASSIGN_OR_RETURN(auto cache, RecordCache::Create(shared, log->layout(), memory.cache_bytes));
  log->UseCache(std::move(cache));
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Create(shared, seed, log->layout().has_uses()));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index), threads));
  store->shared_ = shared;
  TSPS_ASSIGN_OR_RETURN(store->moves_, RecordMoves::Create(shared));
  TSPS_ASSIGN_OR_RETURN(store->announced_, AnnouncedRows::Create(shared, memory.rows));
  store->MakeWriter();
  return store;
}

Result<std::unique_ptr<RecordStore>> RecordStore::Open(const std::string& shared,
                                                       const std::string& disk, RecordLayout layout,
                                                       uint64_t seed, const Memory& memory,
                                                       IoThreads& threads) {
  TSPS_ASSIGN_OR_RETURN(auto log, RecordLog::Open(disk, std::move(layout), threads));
  TSPS_ASSIGN_OR_RETURN(auto cache, RecordCache::Open(shared, log->layout(), memory.cache_bytes));
  log->UseCache(std::move(cache));
  TSPS_ASSIGN_OR_RETURN(auto index, RecordIndex::Open(shared, seed, log->layout().has_uses()));
  std::unique_ptr<RecordStore> store(new RecordStore(std::move(log), std::move(index), threads));
  store->shared_ = shared;
  TSPS_ASSIGN_OR_RETURN(store->moves_, RecordMoves::Open(shared));
  TSPS_ASSIGN_OR_RETURN(store->announced_, AnnouncedRows::Open(shared, memory.rows));
  return store;
}

void RecordStore::MakeWriter() {
  files_ = std::make_unique<RecordFiles>(log_->folder(), log_->layout());
  appender_ = std::make_unique<RecordAppender>(*log_, *files_, RecordKind::kRows);
  compaction_ = std::make_unique<Compaction>(*log_, *index_, *files_);
}

Status RecordStore::MakeWritable(uint32_t committed) {
  compaction_.reset();
  MakeWriter();
  TSPS_RETURN_IF_ERROR(index_->MakeWritable(log_->layout().max_places()));
  TSPS_RETURN_IF_ERROR(moves_->MakeWritable());
  TSPS_RETURN_IF_ERROR(moves_->Recover(committed, *index_));
  TSPS_RETURN_IF_ERROR(files_->Load(threads_));
  TSPS_RETURN_IF_ERROR(CountLive());
  TSPS_ASSIGN_OR_RETURN(const bool known, moves_->StateOf(committed, &state_));
  if (!known || state_.rows != rows()) {
    return Damaged(shared_ + "/records.moves", "it has no state with number ", committed, " and ",
                   rows(), " rows, which the index has");
  }
  files_->ContinueAfter(state_.last_sequence);
  return {};
}

Status RecordStore::CountLive() {
  uint32_t missing = UINT32_MAX;
  uint64_t rows = 0;
  index_->ForEach([&](uint64_t, uint32_t place) {
    const uint32_t file = log_->layout().file_of(place);
    if (files_->HasCount(file) && (files_->live(file) > 0 || files_->Has(file))) {
      files_->Enter(file);
    } else if (file <= missing) {
      rows = file < missing ? 1 : rows + 1;
      missing = file;
    }
  });
  if (missing == UINT32_MAX) return {};
  return Error(Code::kDataLoss, RecordFile::PathOf(log_->folder(), missing), " was deleted, and ",
               rows,
               " rows of the table with it. The table cannot be opened. Remove the job's folder in "
               "shared memory (/dev/shm or TFSPS_DIR), and start from the newest checkpoint");
}

void RecordStore::Enter(uint64_t tag, uint32_t place, const RecordUse& use) {
  index_->Insert(tag, place, use);
  files_->Enter(log_->layout().file_of(place));
}

void RecordStore::Drop(uint64_t tag, uint32_t place) {
  if (index_->Remove(tag, place)) files_->Drop(log_->layout().file_of(place));
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
  if (const RecordCache* const cache = log_->cache(); cache != nullptr) {
    const auto cached = [cache](uint32_t place) { return cache->Has(place); };
    places.erase(std::remove_if(places.begin(), places.end(), cached), places.end());
  }
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

Status RecordStore::Append(size_t n, const RecordAppender::Fill& fill) {
  std::vector<uint64_t> tags(n);
  std::vector<uint32_t> places(n);
  leaving_uses_.assign(n, {});
  const Status appended = appender_->Append(
      n,
      [&](size_t i, char* payload) {
        const int64_t key = fill(i, payload);
        tags[i] = TagOf(key, index_->seed());
        leaving_uses_[i].key = key;
        if (log_->layout().has_uses()) {
          std::memcpy(&leaving_uses_[i].use, payload + log_->layout().use_offset,
                      sizeof(leaving_uses_[i].use));
        }
        return key;
      },
      places.data());
  // Later mutations may have space, if compaction finds what is dead.
  if (appended.code() == Code::kResourceExhausted) CompactAhead(n * log_->layout().record_bytes);
  TSPS_RETURN_IF_ERROR(appended);
  for (size_t i = 0; i < n; ++i) leaving_.push_back({tags[i], places[i]});
  files_->ReserveCounts();
  return index_->Reserve(tags.data(), n);
}

void RecordStore::SortEnteringPlaces() {
  entering_places_.clear();
  places_copies_ = compaction_->HasQueued();
  if (!places_copies_) return;
  for (const RecordMove& move : entering_) entering_places_.push_back(move.place);
  std::sort(entering_places_.begin(), entering_places_.end());
}

Status RecordStore::Leave(const Entering& entering, size_t n, const RecordAppender::Fill& fill) {
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
  SortEnteringPlaces();
  TSPS_RETURN_IF_ERROR(Append(n, fill));
  return moves_->Reserve(entering_.size() + leaving_.size());
}

void RecordStore::Declare() {
  next_ = state_;
  next_.number = next_number();
  next_.rows = rows() + leaving_.size() - entering_.size();
  if (!leaving_.empty()) {
    next_.last_slot = log_->layout().slot_of(leaving_.back().place);
    next_.last_sequence = appender_->current_sequence();
  }
  moves_->Declare(next_, entering_, leaving_);
  for (size_t i = 0; i < leaving_.size(); ++i) {
    if (i + kAhead < leaving_.size()) index_->Prefetch(leaving_[i + kAhead].tag);
    Enter(leaving_[i].tag, leaving_[i].place, leaving_uses_[i]);
    TSPS_FAULT_POINT("record_store_entered_one");
  }
}

void RecordStore::PlaceCopies() {
  if (!places_copies_) return;
  const uint64_t end = NowNs() + kPlaceCopiesNs;
  // As many rows as move are placed in any case, so that compaction keeps up.
  const size_t least = entering_.size() + leaving_.size();
  size_t placed = 0;
  compaction_->Apply([&](const Compaction::Copy& copy) {
    if (placed >= least && placed % kCopiesPerLook == 0 && NowNs() > end) return false;
    const uint32_t to = log_->layout().file_of(copy.to);
    if (!files_->HasCount(to)) return false;  // the next mutation makes space for its count
    ++placed;
    // The entries of rows that enter memory are removed as they are.
    if (std::binary_search(entering_places_.begin(), entering_places_.end(), copy.from)) {
      return true;
    }
    if (!index_->Replace(copy.tag, copy.from, copy.to)) return true;  // the row left the disk
    TSPS_FAULT_POINT("record_store_placed_one");
    files_->Enter(to);
    files_->Drop(log_->layout().file_of(copy.from));
    if (log_->cache() != nullptr) log_->cache()->Move(copy.from, copy.to);
    return true;
  });
}

void RecordStore::PrepareCopies() {
  entering_.clear();
  leaving_.clear();
  files_->ReserveCounts();
  SortEnteringPlaces();
}

void RecordStore::Finish(bool published) {
  if (published) state_ = next_;
  RecordCache* const cache = published ? log_->cache() : nullptr;
  const std::vector<RecordMove>& dropped = published ? entering_ : leaving_;
  for (size_t i = 0; i < dropped.size(); ++i) {
    if (i + kAhead < dropped.size()) {
      index_->Prefetch(dropped[i + kAhead].tag);
      if (cache != nullptr) cache->Prefetch(dropped[i + kAhead].place);
    }
    Drop(dropped[i].tag, dropped[i].place);
    if (cache != nullptr) cache->Remove(dropped[i].place);
    TSPS_FAULT_POINT("record_store_dropped_one");
  }
  moves_->Clear();
  entering_.clear();
  leaving_.clear();
}

void RecordStore::RemoveEmptied() {
  files_->RemoveEmpty([this](uint32_t file) {
    if (file == appender_->current_file() || compaction_->IsUsing(file)) return false;
    if (!log_->RemoveFile(file).ok()) return false;
    TSPS_FAULT_POINT("record_store_compacted");
    return true;
  });
  compaction_->KeepReserve();
}

void RecordStore::CompactAhead(size_t bytes) {
  compaction_->Allow(bytes, [this](uint32_t file) { return file != appender_->current_file(); });
}

}  // namespace tsps
