// Decides which keys of a step get a row (admission_policy.h).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/probe.h"
#include "core/group/row_mutation.h"
#include "core/group/table_number.h"
#include "core/table/index.h"

namespace tsps {

void RowMutation::KeepFresh(const std::vector<uint8_t>& keep, RowPlan* plan) {
  RowMoves& moves = plan->moves;
  size_t kept = 0;
  for (size_t k = 0; k < keep.size(); ++k) {
    if (keep[k] == 0) continue;
    plan->fresh[kept] = plan->fresh[k];
    if (moves.store != nullptr) {
      moves.places[kept] = moves.places[k];
      std::memmove(moves.payloads.data() + kept * moves.payload_bytes,
                   moves.payloads.data() + k * moves.payload_bytes, moves.payload_bytes);
    }
    ++kept;
  }
  plan->fresh.resize(kept);
  if (moves.store != nullptr) moves.places.resize(kept);
}

Status RowMutation::ReadLines(int place, const std::vector<int64_t>& keys,
                              std::vector<SketchLine>* lines) {
  TableFiles& files = *group_.files(place);
  const TableState& state = mutation_.next().tables[static_cast<size_t>(place)];
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  std::vector<uint32_t> rows(keys.size());
  const int64_t astray = ProbeRows(files, state, keys.data(), keys.size(), rows.data());
  if (astray >= 0) return Astray(files, keys[static_cast<size_t>(astray)]);
  lines->assign(keys.size(), SketchLine());
  const Plane& counts = list->planes.back();
  for (size_t i = 0; i < keys.size(); ++i) {
    PrefetchAhead(i, keys.size(), [&](size_t next) {
      if (rows[next] != kAbsentRow) PrefetchLine(counts.row(rows[next]));
    });
    if (rows[i] != kAbsentRow) std::memcpy(&(*lines)[i], counts.row(rows[i]), sizeof(SketchLine));
  }
  return Status();
}

Status RowMutation::Admit(RowPlan& plan) {
  const TableMemory& memory = writer_.memory[static_cast<size_t>(plan.table)];
  if (memory.admission == nullptr || !step_.has_value() || plan.n_updates() == 0) return Status();
  const AdmissionPolicy& policy = *memory.admission;
  const int place = static_cast<int>(PlaceOf(memory.sketch));
  const AdmissionSketch sketch(policy.lines, policy.count, policy.half_life, SketchSeed(place));
  const uint64_t first_line = group_.files(plan.table)->config().shard.node * policy.lines;
  struct Counted {
    uint64_t line;
    int64_t key;
    uint32_t occurrences;
    size_t fresh;
  };
  std::vector<Counted> counted;
  std::vector<uint8_t> keep(plan.fresh.size(), 1);
  const uint32_t* const occurrences = plan.update->request.occurrences;
  for (size_t k = 0; k < plan.fresh.size(); ++k) {
    const uint32_t i = plan.fresh[k];
    if (i >= plan.n_updates() || plan.moves.Record(k) != nullptr) continue;
    const int64_t key = plan.keys[i];
    counted.push_back(
        {first_line + sketch.LineOf(key), key, occurrences == nullptr ? 1 : occurrences[i], k});
    keep[k] = 0;
  }
  if (counted.empty()) return Status();
  std::sort(counted.begin(), counted.end(), [](const Counted& a, const Counted& b) {
    return a.line != b.line ? a.line < b.line : a.key < b.key;
  });
  for (const Counted& key : counted) {
    const auto line = static_cast<int64_t>(key.line);
    if (plan.sketch_keys.empty() || plan.sketch_keys.back() != line) {
      plan.sketch_keys.push_back(line);
    }
  }
  TSPS_RETURN_IF_ERROR(ReadLines(place, plan.sketch_keys, &plan.sketch_lines));
  size_t at = 0;
  for (const Counted& key : counted) {
    while (static_cast<uint64_t>(plan.sketch_keys[at]) != key.line) ++at;
    const uint32_t count =
        sketch.Add(key.key, key.occurrences, UseStep(*step_), &plan.sketch_lines[at]);
    keep[key.fresh] = count >= policy.count;
    plan.n_admitted += keep[key.fresh];
  }
  plan.n_dropped = counted.size() - plan.n_admitted;
  KeepFresh(keep, &plan);
  return Status();
}

Status RowMutation::PlanSketches(const Group& group) {
  const size_t n = plans_.size();
  for (size_t p = 0; p < n; ++p) {
    const RowPlan& plan = plans_[p];
    if (plan.sketch_keys.empty()) continue;
    const TableMemory& memory = writer_.memory[static_cast<size_t>(plan.table)];
    TableWrites writes;
    writes.table = memory.sketch;
    writes.keys = plan.sketch_keys.data();
    writes.n = plan.sketch_keys.size();
    writes.planes = {{PlaneRole::kMetadata, SketchPlane(memory.admission->count),
                      sizeof(SketchLine), plan.sketch_lines.data()}};
    TSPS_RETURN_IF_ERROR(AddWrites(group, writes));  // adds to plans_, which keeps what is in them
    TSPS_RETURN_IF_ERROR(PlanTable(plans_.back()));
  }
  return Status();
}

}  // namespace tsps
