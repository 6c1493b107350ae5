// Plans a mutation of rows: what it will do to which rows, and whether it may. Changes nothing.
#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "core/base/fault_point.h"
#include "core/gradients/key_numbers.h"
#include "core/group/probe.h"
#include "core/group/row_mutation.h"
#include "core/group/table_number.h"
#include "core/table/index.h"

namespace tsps {
namespace {

constexpr size_t kPlanGrain = 4096;

void LowerTo(std::atomic<size_t>& value, size_t candidate) {
  size_t now = value.load(std::memory_order_relaxed);
  while (candidate < now && !value.compare_exchange_weak(now, candidate)) {
  }
}

Status Repeated(const TableFiles& files, int64_t key) {
  return Error(Code::kInvalidArgument, "table ", files.folder(), ": key ", key,
               " is there twice; the keys of an update must be unique");
}

}  // namespace

int64_t RowMarks::Mark(const std::vector<uint32_t>& rows, const std::vector<uint32_t>& positions,
                       uint64_t n_rows) {
  if (marks_.size() < n_rows / 64 + 1) marks_.resize(n_rows / 64 + 1 + n_rows / 256);
  for (const uint32_t position : positions) {
    const uint32_t row = rows[position];
    const uint64_t mark = uint64_t{1} << (row & 63);
    if ((marks_[row >> 6] & mark) != 0) return int64_t{position};
    marks_[row >> 6] |= mark;
  }
  return -1;
}

void RowMarks::Clear(const std::vector<uint32_t>& rows, const std::vector<uint32_t>& positions) {
  for (const uint32_t position : positions) marks_[rows[position] >> 6] = 0;
}

Status RowMutation::PlanTables() {
  std::vector<Status> statuses(plans_.size());
  std::vector<Status> gradients(plans_.size());
  ForEachPlan([&](RowPlan& plan) {
    const auto p = static_cast<size_t>(&plan - plans_.data());
    gradients[p] = CheckGradients(plan);
    statuses[p] = PlanTable(plan);
  });
  TSPS_RETURN_IF_ERROR(FirstError(gradients));
  return FirstError(statuses);
}

Status RowMutation::CheckGradients(const RowPlan& plan) {
  if (!plan.update.has_value()) return Status();
  const int64_t position = plan.update->gradients.FirstNonFinite(executor_);
  if (position < 0) return Status();
  return Error(Code::kInvalidArgument, "table ", group_.files(plan.table)->config().name,
               ": the gradient of key ", plan.keys[position], " is not finite; step ", *step_,
               " was not applied");
}

Status RowMutation::FindPlanned(const TableFiles& files, const TableState& state, RowPlan& plan) {
  const int table = TableNumber(static_cast<size_t>(plan.table), state.removed);
  RowNumberCache::Found cached =
      group_.row_numbers.Take(table, writer_.state.epoch, plan.keys, plan.n);
  plan.rows = std::move(cached.rows);
  plan.moves.places = std::move(cached.places);
  if (plan.rows.size() == plan.n) return Status();
  plan.rows.resize(plan.n);
  std::atomic<int64_t> astray{-1};
  executor_.ParallelFor(plan.n, kPlanGrain, [&](size_t begin, size_t end) {
    const int64_t position =
        ProbeRows(files, state, plan.keys + begin, end - begin, plan.rows.data() + begin);
    if (position >= 0)
      astray.store(static_cast<int64_t>(begin) + position, std::memory_order_relaxed);
  });
  return astray.load() < 0 ? Status() : Astray(files, plan.keys[astray.load()]);
}

Status RowMutation::PlanTable(RowPlan& plan) {
  TableFiles& files = *group_.files(plan.table);
  const TableState& state = StateOf(plan);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  plan.planes = std::max(plan.planes, list->trained());
  TSPS_RETURN_IF_ERROR(FindPlanned(files, state, plan));
  plan.existing.reserve(plan.n);
  for (size_t i = 0; i < plan.n; ++i) {
    auto& positions = plan.rows[i] == kAbsentRow ? plan.fresh : plan.existing;
    positions.push_back(static_cast<uint32_t>(i));
  }
  RowMarks& marks = writer_.memory[static_cast<size_t>(plan.table)].marks;
  const int64_t repeated = marks.Mark(plan.rows, plan.existing, state.rows);
  const Status status = repeated < 0 ? PlanUnique(plan) : RepeatedRow(files, plan, repeated);
  marks.Clear(plan.rows, plan.existing);
  return status;
}

Status RowMutation::PlanUnique(RowPlan& plan) {
  TSPS_RETURN_IF_ERROR(CheckFreshUnique(plan));
  TSPS_RETURN_IF_ERROR(FindErased(plan));
  TSPS_RETURN_IF_ERROR(CheckErased(plan));
  TSPS_RETURN_IF_ERROR(FetchRecords(plan));
  TSPS_RETURN_IF_ERROR(Admit(plan));
  return ChooseEvicted(plan);
}

Status RowMutation::RepeatedRow(const TableFiles& files, const RowPlan& plan,
                                int64_t repeated) const {
  const uint32_t row = plan.rows[static_cast<size_t>(repeated)];
  const auto first = std::find(plan.rows.begin(), plan.rows.end(), row) - plan.rows.begin();
  if (plan.keys[first] == plan.keys[repeated]) return Repeated(files, plan.keys[repeated]);
  return Damaged("table " + files.folder(), "keys ", plan.keys[first], " and ", plan.keys[repeated],
                 " both have row ", row);
}

Status RowMutation::CheckFreshUnique(const RowPlan& plan) const {
  const size_t n = plan.fresh.size();
  if (n == 0) return Status();
  std::atomic<size_t> first{n};  // the first that is there twice
  ForEachShare(n >= kSharedKeys, executor_, [&](size_t share, size_t shares) {
    KeyNumbers numbers(n / shares);
    for (size_t i = 0; i < n; ++i) {
      const int64_t key = plan.keys[plan.fresh[i]];
      if (shares > 1 && ShareOf(static_cast<uint32_t>(HashKey(key, 0)), shares) != share) continue;
      const size_t expected = numbers.size();
      if (numbers.Add(key) == expected) continue;
      LowerTo(first, i);
      break;
    }
  });
  return first == n ? Status() : Repeated(*group_.files(plan.table), plan.keys[plan.fresh[first]]);
}

Status RowMutation::CheckKeyOfRow(const TableFiles& files, const PlaneList& list, int64_t key,
                                  uint32_t row) {
  const int64_t of_row = LoadRelaxed(list.keys()[row]);
  if (of_row == key || TSPS_FAULT_OFF("damage")) return Status();
  return Damaged("table " + files.folder(), "its index leads key ", key, " to row ", row,
                 ", which is that of key ", of_row);
}

bool RowMutation::ErasedHaveMoved(const RowPlan& plan) const {
  const TableFiles& files = *group_.files(plan.table);
  return std::any_of(plan.erased.begin(), plan.erased.end(), [&](const ErasedEntry& entry) {
    return files.segment(entry.segment)->entries[entry.entry].row_plus_one != entry.row_plus_one;
  });
}

Status RowMutation::FindErased(RowPlan& plan) {
  if (plan.erase_keys.empty() && plan.moves.demoted.empty()) return Status();
  plan.erased.clear();
  plan.erased_rows.clear();
  TSPS_RETURN_IF_ERROR(FindEntries(plan, plan.erase_keys));
  const size_t n_erased = plan.erased.size();
  TSPS_RETURN_IF_ERROR(FindEntries(plan, plan.moves.demoted));
  plan.moves.n_demoted = plan.erased.size() - n_erased;
  return Status();
}

Status RowMutation::FindEntries(RowPlan& plan, const std::vector<int64_t>& keys) {
  TableFiles& files = *group_.files(plan.table);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(plan)));
  const TableState& state = StateOf(plan);
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t key = keys[i];
    PrefetchAhead(i, keys.size(), [&](size_t next) { PrefetchEntry(files, state, keys[next]); });
    const uint64_t hash = HashKey(key, state.index_seed);
    const uint32_t number = files.directory_entries()[DirectoryPosition(hash, state.depth)];
    TSPS_RETURN_IF_ERROR(writer_.CheckSegmentOnce(files, plan.table, number, Checked::kEntries));
    const Segment* const segment = files.segment(number);
    const Entry* const entry = FindInSegment(*segment, key, hash);
    if (entry == nullptr) continue;
    TSPS_RETURN_IF_ERROR(CheckKeyOfRow(files, *list, key, entry->row_plus_one - 1));
    plan.erased.push_back(
        {number, static_cast<uint32_t>(entry - segment->entries), entry->row_plus_one});
    plan.erased_rows.push_back(entry->row_plus_one - 1);
  }
  return Status();
}

Status RowMutation::CheckErased(const RowPlan& plan) const {
  if (plan.n == 0 || plan.erase_keys.empty()) return Status();
  const std::unordered_set<int64_t> keys(plan.erase_keys.begin(), plan.erase_keys.end());
  for (size_t i = 0; i < plan.n; ++i) {
    if (keys.count(plan.keys[i]) == 0) continue;
    return Error(Code::kInvalidArgument, "table ", group_.files(plan.table)->folder(), ": key ",
                 plan.keys[i], " is changed and erased in one mutation");
  }
  return Status();
}

}  // namespace tsps
