// Growth of the index: doubles the directory and splits segments, each in a mutation.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/group_impl.h"
#include "core/group/mutation.h"
#include "core/table/index.h"
#include "core/table/table_checks.h"

namespace tsps {
namespace {

class Grower {
 public:
  Grower(Group::Impl& group, GroupWriter::Impl& writer, int table)
      : group_(group), writer_(writer), table_(table), files_(*group.files(table)) {}

  // Frees space in the segment `number`, which belongs to `hash`, for `demand` keys. Compacts the
  // segment if tombstones fill it, and splits it otherwise.
  Status MakeSpace(uint32_t number, uint64_t hash, uint32_t demand) {
    TSPS_RETURN_IF_ERROR(writer_.CheckSegmentOnce(files_, table_, number, Checked::kKeys));
    Segment* segment = files_.segment(number);
    const bool tiered = files_.config().storage.tiered();
    // Where keys come and go all the time, segments must be fuller.
    const PlaneList* const list = files_.Planes(state());
    const bool changing = tiered || (list != nullptr && list->records_use());
    const uint32_t full = changing ? SplitLimit(number) / 5 * 4 : SplitLimit(number) / 2;
    const bool split = LiveEntries(*segment) + demand > full;
    if (split && segment->local_depth == state().depth) TSPS_RETURN_IF_ERROR(DoubleDirectory());
    const uint32_t depth = state().depth;
    const uint32_t local_depth = segment->local_depth;
    const uint32_t sibling = state().segments;
    if (split) {
      const size_t used = (static_cast<size_t>(sibling) + 1) * kSegmentBytes;
      TSPS_RETURN_IF_ERROR(tiered ? files_.segments().Reserve(used)
                                  : writer_.reserver.Ensure(files_.segments(), used));
    }
    Mutation mutation(group_, writer_);
    TSPS_RETURN_IF_ERROR(mutation.Start(UndoSegmentBytes()));
    UndoRecordHeader* record = mutation.Append(UndoKind::kSegment, table_, 1, UndoSegmentBytes());
    record->segment = number;
    record->hash = hash;
    const auto* image = reinterpret_cast<const Segment*>(UndoPayload(record));
    std::memcpy(UndoPayload(record), segment, kSegmentBytes);
    mutation.DeclareUndo();
    TSPS_FAULT_POINT("split.undo");

    mutation.Begin();
    group_.control->BeginRebuild();
    RebuildSegment(*image, state().index_seed, segment, split ? files_.segment(sibling) : nullptr);
    TSPS_FAULT_POINT("split.rebuilt");
    if (split) {
      // The directory entries of a segment are one aligned range. Its upper half goes to the
      // sibling.
      const size_t width = size_t{1} << (depth - local_depth);
      const size_t prefix = local_depth == 0 ? 0 : hash >> (64 - local_depth);
      uint32_t* entries = files_.directory_entries() + (size_t{1} << depth) + prefix * width;
      for (size_t i = width / 2; i < width; ++i) StoreRelaxed(entries[i], sibling);
      TSPS_FAULT_POINT("split.directory");
      mutation.next().tables[static_cast<size_t>(table_)].segments = sibling + 1;
      writer_.MarkChecked(table_, sibling, Checked::kKeys);
    }
    mutation.Publish();
    group_.control->EndRebuild();
    return Status();
  }

 private:
  TableState& state() { return writer_.state.tables[static_cast<size_t>(table_)]; }

  // Writes the next directory after the current one, so that nothing in use changes until the depth
  // does.
  Status DoubleDirectory() {
    const uint32_t depth = state().depth;
    if (!MayDouble(depth, state().segments)) {
      return Error(Code::kResourceExhausted, "the index of table ", files_.folder(),
                   " cannot grow: its directory has ", uint64_t{1} << depth, " entries for ",
                   state().segments, " segments of ", state().live,
                   " keys. The keys seem to be chosen to collide. Nothing was changed");
    }
    const size_t size = size_t{1} << depth;
    TSPS_RETURN_IF_ERROR(writer_.reserver.Ensure(files_.directory(), 4 * size * sizeof(uint32_t)));
    Mutation mutation(group_, writer_);
    TSPS_RETURN_IF_ERROR(mutation.Start(0));
    mutation.DeclareUndo();
    uint32_t* entries = files_.directory_entries();
    for (size_t i = 0; i < size; ++i) {
      const uint32_t number = entries[size + i];
      StoreRelaxed(entries[2 * size + 2 * i], number);
      StoreRelaxed(entries[2 * size + 2 * i + 1], number);
    }
    TSPS_FAULT_POINT("double.directory");
    mutation.Begin();
    mutation.next().tables[static_cast<size_t>(table_)].depth = depth + 1;
    mutation.Publish();
    return Status();
  }

  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  const int table_;
  TableFiles& files_;
};

}  // namespace

Status GroupWriter::Impl::CheckSegmentOnce(const TableFiles& files, int place, uint32_t number,
                                           Checked level) {
  std::vector<Checked>& checked = memory[static_cast<size_t>(place)].checked;
  const Checked done = number < checked.size() ? checked[number] : Checked::kNot;
  if (done >= level) return Status();
  const TableState& table = state.tables[static_cast<size_t>(place)];
  if (done < Checked::kEntries) TSPS_RETURN_IF_ERROR(CheckSegment(files, table, number));
  if (level == Checked::kKeys) TSPS_RETURN_IF_ERROR(CheckKeyPlaces(files, table, number));
  MarkChecked(place, number, level);
  return Status();
}

void GroupWriter::Impl::MarkChecked(int place, uint32_t number, Checked level) {
  std::vector<Checked>& checked = memory[static_cast<size_t>(place)].checked;
  if (number >= checked.size()) checked.resize(number + number / 2 + 16);
  checked[number] = level;
}

Status GrowIndex(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int table,
                 const int64_t* keys, const std::vector<uint32_t>& fresh) {
  struct Demand {
    uint32_t keys;
    uint64_t hash;  // the hash of one of them
  };
  TableFiles& files = *group.files(table);
  Grower grower(group, writer, table);
  const uint64_t started = NowNs();
  uint64_t splits = 0;
  bool grown = true;
  while (grown) {
    grown = false;
    const TableState& state = writer.state.tables[static_cast<size_t>(table)];
    const uint32_t depth = state.depth;
    std::unordered_map<uint32_t, Demand> demands;
    for (const uint32_t i : fresh) {
      const uint64_t hash = HashKey(keys[i], state.index_seed);
      Demand& demand = demands[files.directory_entries()[DirectoryPosition(hash, depth)]];
      ++demand.keys;
      demand.hash = hash;
    }
    std::vector<std::pair<uint32_t, Demand>> full;
    for (const auto& [number, demand] : demands) {
      TSPS_RETURN_IF_ERROR(writer.CheckSegmentOnce(files, table, number, Checked::kEntries));
      if (files.segment(number)->used + demand.keys > SplitLimit(number))
        full.emplace_back(number, demand);
    }
    // The order makes the files of nodes equal if they make the same updates.
    std::sort(full.begin(), full.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [number, demand] : full) {
      group.control->live().growing.store(1, std::memory_order_relaxed);
      const Status status = grower.MakeSpace(number, demand.hash, demand.keys);
      if (!status.ok()) {
        group.control->live().growing.store(0, std::memory_order_relaxed);
        return status;
      }
      ++splits;
      grown = true;
    }
  }
  if (splits > 0) {
    group.control->live().growing.store(0, std::memory_order_relaxed);
    counters.growth_splits.fetch_add(splits, std::memory_order_relaxed);
    RaiseMax(counters.growth_ns_max, NowNs() - started);
  }
  return Status();
}

}  // namespace tsps
