// How a mutation moves rows of a tiered table: it fetches rows that it needs from the disk and
// demotes others to it, all in its one commit.
#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>
#include <utility>

#include "core/group/row_mutation.h"
#include "core/table/row_records.h"

namespace tsps {
namespace {

// The bytes that compaction may read after a mutation: a multiple of what the mutation logs, so
// that the log does not grow.
constexpr size_t kCompaction = 4;
constexpr size_t kLeastCompaction = 256u << 10;

// Moves rows to the disk, in a mutation of its own.
Status Demote(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
              Executor& executor, int place, std::vector<int64_t> keys) {
  if (keys.empty()) return Status();
  RowMutation mutation(group, writer, counters, executor);
  TSPS_RETURN_IF_ERROR(mutation.PlanDemotions(place, std::move(keys)));
  TSPS_RETURN_IF_ERROR(mutation.Reserve());
  mutation.Write();
  mutation.Publish();
  return Status();
}

}  // namespace

Status RowMutation::FetchRecords(RowPlan& plan) {
  TableFiles& files = *group_.files(plan.table);
  RowMoves& moves = plan.moves;
  TSPS_ASSIGN_OR_RETURN(moves.store, files.Records(StateOf(plan)));
  if (moves.store == nullptr) return Status();
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(plan)));
  moves.payload_bytes = RowRecords(*list).bytes();
  const bool known = moves.places.size() == plan.fresh.size();
  moves.places.resize(plan.fresh.size(), kNoRecord);
  moves.payloads.resize(plan.fresh.size() * moves.payload_bytes);
  std::vector<int64_t> keys(plan.fresh.size());
  for (size_t k = 0; k < keys.size(); ++k) keys[k] = plan.keys[plan.fresh[k]];
  const auto keep = [&](size_t k, const char* payload) {
    std::memcpy(moves.payloads.data() + k * moves.payload_bytes, payload, moves.payload_bytes);
  };
  uint32_t* const places = moves.places.data();
  TSPS_RETURN_IF_ERROR(
      known ? moves.store->ReadAgain(keys.data(), keys.size(), /*urgent=*/true, places, keep)
            : moves.store->Read(keys.data(), keys.size(), /*urgent=*/true, places, keep));
  if (plan.erase_keys.size() == plan.erased.size()) return Status();
  std::vector<uint32_t> erased(plan.erase_keys.size());
  TSPS_RETURN_IF_ERROR(moves.store->Read(plan.erase_keys.data(), erased.size(), /*urgent=*/true,
                                         erased.data(), [](size_t, const char*) {}));
  for (size_t i = 0; i < erased.size(); ++i) {
    if (erased[i] == kNoRecord) continue;
    moves.erased.push_back(plan.erase_keys[i]);
    moves.erased_places.push_back(erased[i]);
  }
  return Status();
}

Demotions::Rows RowMutation::RowsOf(const RowPlan& plan, const PlaneList& list) const {
  return {list.changed_generations(), &plan.moves.store->announced(), writer_.state.step};
}

Status RowMutation::MakeSpace(RowPlan& plan) {
  RowMoves& moves = plan.moves;
  if (moves.store == nullptr || !moves.demoted.empty()) return Status();
  TableFiles& files = *group_.files(plan.table);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(plan)));
  const MemoryPlan capacity = files.PlanOf(*list);
  const TableConfig& config = files.config();
  if (MostRows(config) > 0 && MostRows(config) <= capacity.rows)
    return Status();  // all rows fit into memory
  Demotions& demotions = writer_.memory[static_cast<size_t>(plan.table)].demotions;
  std::vector<uint32_t> kept(plan.existing.size());
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = plan.rows[plan.existing[i]];
  demotions.Resize(StateOf(plan).rows);
  demotions.Used(kept.data(), kept.size());

  const size_t n_fresh = plan.fresh.size();
  if (kept.size() + n_fresh > capacity.rows) {
    return Error(Code::kResourceExhausted, "table ", config.name, ": a change of ",
                 kept.size() + n_fresh, " rows at once, and memory of ", config.storage.memory,
                 " bytes has room for ", capacity.rows, "; two such changes take ",
                 MemoryFor(2 * (kept.size() + n_fresh), RowCost(*list), MostRows(config)),
                 " bytes");
  }
  const uint64_t all =
      StateOf(plan).live + moves.store->rows() + n_fresh - moves.n_fetched() - plan.n_erased();
  if (all > capacity.rows_in_all && n_fresh > moves.n_fetched()) {
    return Error(Code::kResourceExhausted, "table ", config.name, " would have ", all,
                 " rows, and memory of ", config.storage.memory,
                 " bytes has space for the places of ", capacity.rows_in_all,
                 " rows, in memory and on disk. A million places take ",
                 list->records_use() ? 78 : 55, " MiB");
  }
  const uint64_t free = capacity.rows - std::min(capacity.rows, StateOf(plan).live);
  if (n_fresh > free) TSPS_RETURN_IF_ERROR(DemoteFirst(plan, n_fresh - free + n_fresh / 4, kept));
  const uint64_t live = StateOf(plan).live + n_fresh - plan.erased.size();
  // The next mutation may fetch as many, if the table can have so many rows outside of memory.
  uint64_t next = std::min<uint64_t>(n_fresh + n_fresh / 4 + 64, capacity.rows / 4);
  if (const uint64_t most = MostRows(config); most > 0) {
    next = std::min(next, most - std::min(most, live));
  }
  if (n_fresh == 0 || live + next <= capacity.rows) return Status();
  const std::unordered_set<uint32_t> erased(plan.erased_rows.begin(), plan.erased_rows.end());
  for (const uint32_t row :
       demotions.Choose(live + next - capacity.rows, RowsOf(plan, *list), kept)) {
    // An erased row leaves memory anyway.
    if (erased.count(row) == 0) moves.demoted.push_back(list->keys()[row]);
  }
  return Status();
}

Status RowMutation::DemoteFirst(RowPlan& plan, size_t n, const std::vector<uint32_t>& kept) {
  TableFiles& files = *group_.files(plan.table);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(plan)));
  std::vector<uint32_t> stay = kept;
  stay.insert(stay.end(), plan.erased_rows.begin(), plan.erased_rows.end());
  std::vector<int64_t> keys;
  Demotions& demotions = writer_.memory[static_cast<size_t>(plan.table)].demotions;
  for (const uint32_t row : demotions.Choose(n, RowsOf(plan, *list), stay))
    keys.push_back(list->keys()[row]);
  TSPS_RETURN_IF_ERROR(Demote(group_, writer_, counters_, executor_, plan.table, std::move(keys)));
  mutation_.Reset();
  return Status();
}

void PlaceCopies(Group::Impl& group, GroupWriter::Impl& writer) {
  std::vector<RecordStore*> stores;
  for (size_t place = 0; place < writer.state.tables.size(); ++place) {
    TableFiles* const files = group.files(static_cast<int>(place));
    if (files == nullptr) continue;
    const Result<RecordStore*> store = files->Records(writer.state.tables[place]);
    if (store.ok() && *store != nullptr && (*store)->HasCopies()) stores.push_back(*store);
  }
  Mutation mutation(group, writer);
  if (stores.empty() || !mutation.Start(0).ok()) return;
  for (RecordStore* const store : stores) store->PrepareCopies();
  mutation.DeclareUndo();
  mutation.Begin();
  const bool scans = writer.images.any();  // they need the places of the state that they read
  for (RecordStore* const store : stores) {
    if (!scans) store->PlaceCopies();
  }
  mutation.Publish();
  for (RecordStore* const store : stores) {
    if (!writer.images.any()) store->RemoveEmptied();
  }
}

Status DemoteAll(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
                 int place) {
  constexpr size_t kRows = 16384;  // in one mutation
  SerialExecutor executor;
  const TableState state = writer.state.tables[static_cast<size_t>(place)];
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, group.files(place)->BoundPlanes(state));
  std::vector<int64_t> keys;
  for (uint64_t row = 0; row < state.rows; ++row) {
    if (list->changed_generations()[row] != kFreeRow) keys.push_back(list->keys()[row]);
    if (keys.size() < kRows && row + 1 < state.rows) continue;
    TSPS_RETURN_IF_ERROR(Demote(group, writer, counters, executor, place, std::move(keys)));
    keys.clear();
  }
  return Status();
}

Status RowMutation::PrepareMoves(RowPlan& plan) {
  RowMoves& moves = plan.moves;
  if (moves.store == nullptr) return Status();
  TableFiles& files = *group_.files(plan.table);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(plan)));
  const size_t n_demoted = moves.n_demoted;
  // Erased rows leave the disk as fetched ones do, but are not written anywhere.
  std::vector<int64_t> keys = moves.erased;
  std::vector<uint32_t> places = moves.erased_places;
  for (size_t k = 0; k < moves.places.size(); ++k) {
    if (moves.places[k] == kNoRecord) continue;
    keys.push_back(plan.keys[plan.fresh[k]]);
    places.push_back(moves.places[k]);
  }
  const RowRecords records(*list);
  const size_t first = plan.erased.size() - n_demoted;
  TSPS_RETURN_IF_ERROR(moves.store->Leave(
      {keys.data(), places.data(), keys.size()}, n_demoted, [&](size_t i, char* payload) {
        const uint32_t row = plan.erased_rows[first + i];
        PrefetchAhead(i, n_demoted,
                      [&](size_t next) { records.Prefetch(plan.erased_rows[first + next]); });
        records.Copy(row, payload);
        return records.KeyOf(row);
      }));
  moves.prepared = true;
  StateOf(plan).moves = moves.store->next_number();
  return Status();
}

// Files of a tiered table are reserved only as far as they are used. So the reserver, which also
// collapses files that it grows ahead, must be asked to do so here.
void RowMutation::CollapseFiles(const RowPlan& plan) {
  TableFiles& files = *group_.files(plan.table);
  for (const Plane& plane : files.Planes(StateOf(plan))->planes) {
    writer_.reserver.Collapse(*plane.file);
  }
  writer_.reserver.Collapse(files.segments());
  for (MappedFile* const file : plan.moves.store->LargeFiles()) writer_.reserver.Collapse(*file);
}

void RowMutation::FinishMoves(bool published) {
  for (RowPlan& plan : plans_) {
    RowMoves& moves = plan.moves;
    if (!moves.prepared) continue;
    moves.prepared = false;
    moves.store->Finish(published);
    try {
      AfterMoves(plan, published);
    } catch (const std::bad_alloc&) {
      // The mutation is complete. A later one does what was left undone here.
    }
  }
}

void RowMutation::AfterMoves(const RowPlan& plan, bool published) {
  RecordStore& store = *plan.moves.store;
  if (!writer_.images.any()) store.RemoveEmptied();
  if (!published) return;
  Demotions& demotions = writer_.memory[static_cast<size_t>(plan.table)].demotions;
  std::vector<uint32_t> taken(plan.fresh.size());
  for (size_t k = 0; k < taken.size(); ++k) taken[k] = plan.rows[plan.fresh[k]];
  if (!taken.empty()) {
    demotions.Resize(StateOf(plan).rows);
    demotions.Taken(taken);
  }
  if (plan.n_updates() > 0) demotions.NextStep();
  CollapseFiles(plan);
  const size_t logged = plan.moves.n_demoted * plan.moves.payload_bytes;
  store.CompactAhead(std::max(kCompaction * logged, kLeastCompaction));
}

}  // namespace tsps
