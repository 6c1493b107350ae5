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
  scan->files_ = RecordFilesIn(store.log_->folder());
  return scan;
}

Result<uint32_t> RecordScan::SlotsOfState(uint32_t file) {
  const auto known = slots_of_state_.find(file);
  if (known != slots_of_state_.end()) return known->second;
  TSPS_ASSIGN_OR_RETURN(const RecordFileId id, store_.log_->IdOf(file));
  auto slots = static_cast<uint32_t>(store_.log_->layout().records_per_file);
  if (id.kind == RecordKind::kRows && id.sequence >= state_.last_sequence) {
    slots = id.sequence == state_.last_sequence ? state_.last_slot + 1 : 0;
  }
  slots_of_state_[file] = slots;
  return slots;
}

Result<bool> RecordScan::OfState(uint32_t place) {
  const RecordLayout& layout = store_.log_->layout();
  TSPS_ASSIGN_OR_RETURN(const uint32_t slots, SlotsOfState(layout.file_of(place)));
  return layout.slot_of(place) < slots;
}

// A row that left after the state was committed, or was never of it, is told from others when it is
// read: this needs no look into its file.
void RecordScan::Left(const RecordMove* moves, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (left_.insert(moves[i].place).second) left_by_tag_.emplace(moves[i].tag, moves[i].place);
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
  const Result<uint32_t> slots = SlotsOfState(files_[file_]);
  std::vector<Row> rows;
  PageBuffer records;  // has the payloads of `rows`
  uint32_t n = 0;
  if (slots.ok() && *slots > slot_) {
    n = static_cast<uint32_t>(
        std::clamp<size_t>(kSliceBytes / layout.record_bytes, 1, *slots - slot_));
    const auto keep = [&](uint32_t place, int64_t key, const char* payload) {
      if (entered_.count(place) == 0) rows.push_back({place, key, payload});
    };
    TSPS_ASSIGN_OR_RETURN(records, log.ReadSlots(files_[file_], slot_, n, keep));
  } else if (!slots.ok() && slots.status().code() != Code::kNotFound) {
    return slots.status();
  }
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
  // If there is no file, the writer was removing it when the scan began: it had no row of the
  // state.
  if (!slots.ok() || slot_ >= *slots) {
    ++file_;
    slot_ = 0;
  }
  return true;
}

Status RecordScan::Find(const int64_t* keys, size_t n, const RecordStore::Visit& visit) {
  const RecordIndex& index = *store_.index_;
  std::vector<uint32_t> places;  // places that may have the row of a wanted key
  std::vector<size_t> wanted;    // the position of that key in `keys`
  const auto add = [&](size_t i, uint32_t place) -> Status {
    TSPS_ASSIGN_OR_RETURN(const bool of_state, OfState(place));
    if (!of_state || entered_.count(place) != 0) return {};
    places.push_back(place);
    wanted.push_back(i);
    return {};
  };
  std::vector<uint32_t> candidates;
  for (size_t i = 0; i < n; ++i) {
    if (!index.Find(TagOf(keys[i], index.seed()), &candidates)) {
      return Error(Code::kUnavailable, "the index of the records in ", store_.log_->folder(),
                   " is damaged, or grows too fast to be read");
    }
    for (const uint32_t place : candidates) TSPS_RETURN_IF_ERROR(add(i, place));
  }
  TSPS_RETURN_IF_ERROR(refresh_());
  if (!left_.empty()) {
    const std::unordered_set<uint32_t> known(places.begin(), places.end());
    for (size_t i = 0; i < n; ++i) {
      const auto range = left_by_tag_.equal_range(TagOf(keys[i], index.seed()));
      for (auto removed = range.first; removed != range.second; ++removed) {
        if (known.count(removed->second) == 0) TSPS_RETURN_IF_ERROR(add(i, removed->second));
      }
    }
  }
  return store_.log_->Read(places.data(), places.size(), /*urgent=*/false,
                           [&](size_t p, int64_t key, const char* payload) {
                             if (key == keys[wanted[p]]) visit(wanted[p], payload);
                           });
}

}  // namespace tsps
