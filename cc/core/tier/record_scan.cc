#include "core/tier/record_scan.h"

#include <algorithm>
#include <utility>

#include "core/tier/removed_folder.h"

namespace tsps {
namespace {

constexpr size_t kSliceBytes = 2u << 20;

}  // namespace

Result<std::unique_ptr<RecordScan>> RecordScan::Begin(RecordStore& store, uint32_t committed,
                                                      std::function<Status()> refresh) {
  std::unique_ptr<RecordScan> scan(new RecordScan(store, std::move(refresh)));
  std::vector<uint32_t> entered;
  if (!store.moves_->Unfinished(committed, &entered)) return std::unique_ptr<RecordScan>();
  TSPS_ASSIGN_OR_RETURN(const bool known, store.moves_->StateOf(committed, &scan->state_));
  if (!known) return std::unique_ptr<RecordScan>();
  scan->entered_.insert(entered.begin(), entered.end());
  for (const uint32_t file : store.log_->Files()) {
    if (scan->OfState(store.log_->layout().place(file, 0))) scan->files_.push_back(file);
  }
  return scan;
}

// Numbers of files wrap around, so the distance to the last place decides.
bool RecordScan::OfState(uint32_t place) const {
  if (state_.last == kNoRecord) return false;
  const uint64_t places = store_.log_->layout().max_places();
  return (state_.last + places - place) % places < places / 2;
}

void RecordScan::Left(const RecordMove* moves, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!OfState(moves[i].place) || !left_.insert(moves[i].place).second) continue;
    left_by_tag_.emplace(moves[i].tag, moves[i].place);
  }
}

void RecordScan::LeftDeclared(uint32_t number) {
  std::vector<RecordMove> moves;
  if (store_.moves_->Entering(number, &moves)) Left(moves.data(), moves.size());
}

Result<bool> RecordScan::Next(const VisitRow& visit) {
  RecordLog& log = *store_.log_;
  const RecordIndex& index = *store_.index_;
  const RecordLayout& layout = log.layout();
  if (file_ == files_.size()) {
    if (visited_ == state_.rows) return false;
    return RemovedFolderOr(log.folder(), Damaged(log.folder(), "only ", visited_, " of its ",
                                                 state_.rows, " rows can be read"));
  }
  const size_t left = layout.records_per_file - slot_;
  const auto n =
      static_cast<uint32_t>(std::clamp<size_t>(kSliceBytes / layout.record_bytes, 1, left));
  std::vector<Row> rows;
  const Result<PageBuffer> records =
      log.ReadSlots(files_[file_], slot_, n, [&](uint32_t place, int64_t key, const char* payload) {
        if (!OfState(place) || entered_.count(place) != 0) return;
        rows.push_back({place, key, payload});
      });
  if (records.status().code() == Code::kNotFound) {
    TSPS_RETURN_IF_ERROR(refresh_());
    ++file_;  // the writer was removing the file when the scan began: it had no row of the state
    slot_ = 0;
    return true;
  }
  TSPS_RETURN_IF_ERROR(records.status());
  // Reads the index before the removals, so that no entry that is removed meanwhile is missed.
  std::vector<char> in_index(rows.size());
  std::vector<uint32_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!index.Find(TagOf(rows[i].key, index.seed()), &places)) {
      return Error(Code::kUnavailable, "the index of the records in ", log.folder(),
                   " is damaged, or grows too fast to be read");
    }
    in_index[i] = std::find(places.begin(), places.end(), rows[i].place) != places.end();
  }
  TSPS_RETURN_IF_ERROR(refresh_());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!in_index[i] && left_.count(rows[i].place) == 0) continue;
    visit(rows[i].key, rows[i].payload);
    ++visited_;
  }
  slot_ += n;
  if (slot_ == layout.records_per_file) {
    ++file_;
    slot_ = 0;
  }
  return true;
}

Status RecordScan::Find(const int64_t* keys, size_t n, const RecordStore::Visit& visit) {
  const RecordIndex& index = *store_.index_;
  std::vector<uint32_t> places;  // places that may have the row of a wanted key
  std::vector<size_t> wanted;    // the position of that key in `keys`
  const auto add = [&](size_t i, uint32_t place) {
    if (!OfState(place) || entered_.count(place) != 0) return;
    places.push_back(place);
    wanted.push_back(i);
  };
  std::vector<uint32_t> candidates;
  for (size_t i = 0; i < n; ++i) {
    if (!index.Find(TagOf(keys[i], index.seed()), &candidates)) {
      return Error(Code::kUnavailable, "the index of the records in ", store_.log_->folder(),
                   " is damaged, or grows too fast to be read");
    }
    for (const uint32_t place : candidates) add(i, place);
  }
  TSPS_RETURN_IF_ERROR(refresh_());
  if (!left_.empty()) {
    const std::unordered_set<uint32_t> known(places.begin(), places.end());
    for (size_t i = 0; i < n; ++i) {
      const auto range = left_by_tag_.equal_range(TagOf(keys[i], index.seed()));
      for (auto removed = range.first; removed != range.second; ++removed) {
        if (known.count(removed->second) == 0) add(i, removed->second);
      }
    }
  }
  return store_.log_->Read(places.data(), places.size(), /*urgent=*/false,
                           [&](size_t p, int64_t key, const char* payload) {
                             if (key == keys[wanted[p]]) visit(wanted[p], payload);
                           });
}

}  // namespace tsps
