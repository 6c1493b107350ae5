// The methods of PyGroup that read.
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "core/base/racy_copy.h"
#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "core/table/index.h"
#include "core/table/planes.h"
#include "core/table/row_records.h"
#include "python/py_group.h"

namespace tsps {
namespace {

// The options of a scan that reads only keys and change generations.
Scan::Options KeysAlone() {
  Scan::Options options;
  options.embedding = options.slots_and_metadata = false;
  return options;
}

// The keys that have no row in memory, and their positions.
struct Absent {
  Absent(const int64_t* all, const std::vector<uint32_t>& rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != kAbsentRow) continue;
      keys.push_back(all[i]);
      positions.push_back(i);
    }
  }
  std::vector<int64_t> keys;
  std::vector<size_t> positions;
};

}  // namespace

py::dict PyGroup::Info() const {
  GroupInfo info;
  uint64_t bytes = 0;
  WithoutGil([&] {
    info = group_->Info();
    bytes = group_->Bytes();
  });
  py::dict result;
  result["path"] = info.path;
  result["uuid"] = info.uuid;
  const GroupDraw draw = group_->draw();
  result["life"] = draw.life;
  result["index_seed"] = draw.index_seed;
  result["step"] = info.step;
  result["version"] = info.version;
  result["writer_pid"] = info.writer_pid;
  result["writer_alive"] = info.writer_alive;
  result["unfinished"] = info.unfinished;
  result["run_id"] = info.run_id;
  result["sealed"] = py::none();
  if (info.sealed.has_value()) {
    py::dict sealed;
    sealed["step"] = info.sealed->step;
    sealed["run_id"] = info.sealed->run_id;
    sealed["peers"] = info.sealed->peers;
    result["sealed"] = sealed;
  }
  result["bytes"] = bytes;
  return result;
}

py::dict PyGroup::Counters() const {
  const GroupCounters& counters = group_->counters();
  py::dict result;
  result["read_retries"] = counters.read_retries.load();
  result["read_blocked_ns_max"] = counters.read_blocked_ns_max.load();
  result["read_blocked_ns_total"] = counters.read_blocked_ns_total.load();
  result["growth_blocked_ns_max"] = counters.growth_blocked_ns_max.load();
  result["steps_applied"] = counters.steps_applied.load();
  result["rows_written"] = counters.rows_written.load();
  result["growth_splits"] = counters.growth_splits.load();
  result["growth_ns_max"] = counters.growth_ns_max.load();
  result["publish_ns_max"] = counters.publish_ns_max.load();
  return result;
}

py::dict PyGroup::TableInfo(int table) {
  const auto known = Config(table);
  const TableConfig& config = *known;
  py::dict result;
  result["name"] = config.name;
  result["uuid"] = config.uuid;
  result["dim"] = config.dim;
  result["key_limit"] = config.key_limit;
  result["max_rows"] = config.max_rows;
  result["initializer"] = ToPython(config.initializer);
  result["metadata"] = ToPython(StatsOf(table).metadata);
  result["dtype"] = PlaneTypeName(config.row_type);
  result["rounding"] = RoundingName(config.rounding);
  result["storage_folder"] = config.storage.folder;
  result["storage_memory"] = config.storage.memory;
  result["node"] = config.shard.node;
  result["nodes"] = config.shard.nodes;
  return result;
}

py::dict PyGroup::Stats(int table) {
  const TableStats stats = StatsOf(table);
  py::dict result;
  result["rows"] = stats.rows;
  result["row_capacity"] = stats.row_capacity;
  result["segments"] = stats.segments;
  result["bytes"] = stats.bytes;
  result["rows_on_disk"] = stats.rows_on_disk;
  result["bytes_on_disk"] = stats.bytes_on_disk;
  result["live_bytes_on_disk"] = stats.live_bytes_on_disk;
  result["rows_to_stage"] = stats.rows_to_stage;
  result["optimizer"] = ToPython(stats.optimizer);
  result["trained_by"] = ToPython(stats.trained_by);
  result["index_seed"] = stats.index_seed;
  result["version"] = stats.version;
  result["evicted_unused"] = stats.evicted_unused;
  result["evicted_excess"] = stats.evicted_excess;
  result["admitted"] = stats.admitted;
  result["gradients_dropped"] = stats.dropped;
  return result;
}

py::object PyGroup::SketchOf(int table) {
  const std::optional<int> sketch = ValueOrThrow(group_->SketchOf(table));
  if (!sketch.has_value()) return py::none();
  return py::int_(*sketch);
}

py::tuple PyGroup::SketchFill(int table, int sketch, uint32_t count, uint32_t half_life) {
  const uint64_t lines =
      static_cast<uint64_t>(Config(sketch)->key_limit) / std::max(1u, Config(table)->shard.nodes);
  const AdmissionSketch counts(lines, count, half_life, StatsOf(sketch).index_seed);
  double filled = 0, errors = 0;
  ThrowIfError(Read([&](const ReadView& view) {
    filled = errors = 0;
    const uint32_t step = UseStep(view.step());
    const PlaneList* const list = view.Planes(sketch);
    const uint64_t rows = view.Stats(sketch).row_capacity;
    if (list == nullptr) return Status();
    for (uint64_t row = 0; row < rows; ++row) {
      const char* const from =
          view.Plane(sketch, list->planes.size() - 1, static_cast<uint32_t>(row));
      if (from == nullptr) break;  // the state has changed meanwhile
      SketchLine line;
      RacyRead(&line, from, sizeof(line));
      const auto n = static_cast<double>(counts.cells());
      filled += static_cast<double>(counts.CountAtLeast(line, 1, step)) / n;
      // A key that occurs for the first time is admitted if other keys have raised both its cells.
      const double raised = static_cast<double>(counts.CountAtLeast(line, count - 1, step)) / n;
      errors += raised * raised;
    }
    return Status();
  }));
  const auto all = static_cast<double>(lines);
  return py::make_tuple(filled / all, errors / all);
}

py::object PyGroup::OldestUse(int table) {
  // Only the writer may read the uses of rows on disk, which are older than those in memory.
  if (Config(table)->storage.tiered()) return py::none();
  std::optional<uint32_t> oldest;
  uint64_t step = 0;
  ThrowIfError(Read([&](const ReadView& view) {
    oldest.reset();
    step = view.step();
    const PlaneList* const list = view.Planes(table);
    if (list == nullptr || !list->records_use()) return Status();
    const uint64_t rows = view.Stats(table).row_capacity;
    // Looking at the last row maps the planes that far.
    const auto last = static_cast<uint32_t>(rows - 1);
    for (const size_t plane : {list->trained() - 1, list->trained() + 1}) {
      if (rows == 0 || view.Plane(table, plane, last) == nullptr) return Status();
    }
    const RowUse* const uses = list->uses();
    const uint32_t* const changed = list->changed_generations();
    for (uint64_t row = 0; row < rows; ++row) {
      const uint32_t trained_in = LoadRelaxed(uses[row].step);
      if (LoadRelaxed(changed[row]) == kFreeRow) continue;
      if (trained_in < oldest.value_or(UINT32_MAX)) oldest = trained_in;
    }
    return Status();
  }));
  if (!oldest.has_value()) return py::none();
  return py::make_tuple(step, *oldest);
}

FloatArray PyGroup::Lookup(int table, const KeyArray& keys) {
  const py::tuple result = LookupTables({{table, keys}});
  return result[1].cast<std::vector<FloatArray>>()[0];
}

py::tuple PyGroup::LookupTables(const std::vector<std::pair<int, KeyArray>>& parts) {
  std::vector<RowGather> gathers;
  std::vector<FloatArray> rows;
  std::vector<float*> out;
  std::vector<int> tables;
  size_t total = 0;
  for (const auto& [table, keys] : parts) {
    auto config = Config(table);
    const size_t n = KeyCount(keys);
    ThrowIfError(CheckKeys(*config, keys.data(), n));
    rows.push_back(NewRows(n, config->dim));
    out.push_back(rows.back().mutable_data());
    tables.push_back(table);
    total += n;
    gathers.emplace_back(std::move(config), table, keys.data(), n);
  }
  uint64_t step = 0;
  const auto copy = [&](size_t p) { gathers[p].CopyAll(out[p], *executor_); };
  const auto read = [&](const ReadView& view) {
    step = view.step();
    for (size_t p = 0; p < gathers.size(); ++p) {
      gathers[p].Find(view, *executor_);
      copy(p);
    }
    return Status();
  };
  const auto scan = [&](Scan& scan) -> Status {
    step = scan.step();
    for (size_t p = 0; p < gathers.size(); ++p) {
      TSPS_RETURN_IF_ERROR(gathers[p].Find(scan, *executor_));
      copy(p);
    }
    return Status();
  };
  ThrowIfError(WithoutGil(
      [&] { return ReadOrScan(*group_, tables, total, true, Scan::RowsAlone(), read, scan); }));
  for (const RowGather& gather : gathers) ThrowIfError(gather.status());
  return py::make_tuple(step, rows);
}

py::tuple PyGroup::Entries(int table, const KeyArray& keys, bool with_slots) {
  const auto config = Config(table);
  const size_t n = KeyCount(keys);
  const int64_t* key_data = keys.data();
  const int64_t dim = config->dim;
  const auto width = static_cast<size_t>(dim);
  py::array_t<bool> found(static_cast<py::ssize_t>(n));
  const size_t row_bytes = width * ElementBytes(config->row_type);
  std::vector<char> rows(n * row_bytes);  // as they are stored
  std::vector<FloatArray> slots;
  const OptimizerKind kind = with_slots ? StatsOf(table).optimizer.kind : OptimizerKind::kNone;
  std::vector<float*> slot_data;
  std::vector<size_t> slot_width;
  for (int slot = 0; slot < SlotCount(kind); ++slot) {
    slot_width.push_back(SlotWidth(kind, slot, width));
    slots.push_back(NewRows(n, static_cast<int64_t>(slot_width.back())));
    slot_data.push_back(slots.back().mutable_data());
  }
  bool* found_data = found.mutable_data();
  char* row_data = rows.data();
  std::vector<uint32_t> numbers(n);
  const auto zero = [&](size_t i) {
    std::fill_n(row_data + i * row_bytes, row_bytes, '\0');
    for (size_t slot = 0; slot < slot_data.size(); ++slot) {
      std::fill_n(slot_data[slot] + i * slot_width[slot], slot_width[slot], 0.0f);
    }
  };
  const auto other_optimizer = [&] {
    return Error(Code::kUnavailable, "table ", config->name, " of ", group_->path(),
                 " got another optimizer during the read. Read it again");
  };
  char* planes[kMaxPlanes] = {row_data};
  for (size_t slot = 0; slot < slot_data.size(); ++slot) {
    planes[1 + slot] = reinterpret_cast<char*>(slot_data[slot]);
  }
  // Reads the rows of keys that are not in memory.
  const auto read_records = [&](auto& source, const PlaneList* list) -> Status {
    if (!config->storage.tiered() || list == nullptr) return Status();
    const Absent absent(key_data, numbers);
    const RowRecords records(*list);
    return source.ReadRecords(table, absent.keys.data(), absent.keys.size(),
                              [&](size_t i, const char* payload) {
                                records.Split(payload, absent.positions[i], planes);
                                found_data[absent.positions[i]] = true;
                              });
  };
  const auto read = [&](const ReadView& view) -> Status {
    if (with_slots && view.Stats(table).optimizer.kind != kind) return other_optimizer();
    view.FindRows(table, key_data, n, numbers.data());
    for (size_t i = 0; i < n; ++i) {
      found_data[i] = numbers[i] != kAbsentRow;
      if (!found_data[i]) {
        zero(i);
        continue;
      }
      RacyRead(row_data + i * row_bytes, view.Row(table, numbers[i]), row_bytes);
      for (size_t slot = 0; slot < slot_data.size(); ++slot) {
        const float* const row = view.Slot(table, static_cast<int>(slot), numbers[i]);
        if (row == nullptr) return other_optimizer();
        RacyRead(slot_data[slot] + i * slot_width[slot], row, slot_width[slot] * sizeof(float));
      }
    }
    return read_records(view, view.Planes(table));
  };
  const auto scan = [&](Scan& scan) -> Status {
    if (with_slots && scan.Planes(table).optimizer.kind != kind) return other_optimizer();
    TSPS_RETURN_IF_ERROR(scan.Find(table, key_data, n, numbers.data(), *executor_));
    TSPS_RETURN_IF_ERROR(scan.Copy(table, numbers.data(), n, planes, *executor_));
    for (size_t i = 0; i < n; ++i) {
      found_data[i] = numbers[i] != kAbsentRow;
      if (!found_data[i]) zero(i);
    }
    return read_records(scan, &scan.Planes(table));
  };
  Scan::Options options;
  options.slots_and_metadata = with_slots;
  ThrowIfError(
      WithoutGil([&] { return ReadOrScan(*group_, {table}, n, true, options, read, scan); }));
  return py::make_tuple(std::move(found), WidenRows(config->row_type, row_data, n, dim),
                        std::move(slots));
}

py::dict PyGroup::Metadata(int table, const KeyArray& keys) {
  const size_t n = KeyCount(keys);
  const int64_t* key_data = keys.data();
  const std::vector<MetadataPlane> planes = StatsOf(table).metadata;  // never changes
  const bool tiered = Config(table)->storage.tiered();
  py::dict result;
  std::vector<char*> data;
  std::vector<size_t> row_bytes;
  for (const MetadataPlane& plane : planes) {
    py::array values = NewMetadata(plane, n);
    data.push_back(static_cast<char*>(values.mutable_data()));
    row_bytes.push_back(plane.elements * ElementBytes(plane.type));
    result[py::str(plane.name)] = std::move(values);
  }
  std::vector<uint32_t> numbers(n);
  ThrowIfError(Read([&](const ReadView& view) {
    view.FindRows(table, key_data, n, numbers.data());
    for (size_t p = 0; p < planes.size(); ++p) {
      for (size_t i = 0; i < n; ++i) {
        char* const to = data[p] + i * row_bytes[p];
        const char* const from =
            numbers[i] == kAbsentRow ? nullptr : view.Metadata(table, p, numbers[i]);
        if (from == nullptr) {
          std::fill_n(to, row_bytes[p], '\0');
        } else {
          RacyRead(to, from, row_bytes[p]);
        }
      }
    }
    const PlaneList* const list = view.Planes(table);
    if (!tiered || list == nullptr) return Status();
    const Absent absent(key_data, numbers);
    const RowRecords records(*list);
    char* to[kMaxPlanes] = {};
    for (size_t p = 0; p < planes.size(); ++p) to[list->metadata(p)] = data[p];
    return view.ReadRecords(
        table, absent.keys.data(), absent.keys.size(),
        [&](size_t i, const char* payload) { records.Split(payload, absent.positions[i], to); });
  }));
  return result;
}

KeyArray PyGroup::Keys(int table) {
  constexpr size_t kRows = 65536;
  std::vector<int64_t> keys;
  ThrowIfError(WithoutGil([&]() -> Status {
    TSPS_ASSIGN_OR_RETURN(const auto scan, Scan::Begin(*group_, {table}, KeysAlone()));
    keys.resize(scan->RowsOf(table) + kRows);
    char* planes[kMaxPlanes] = {};
    size_t n = 0;
    while (true) {
      if (keys.size() < n + kRows) keys.resize(n + kRows);
      TSPS_ASSIGN_OR_RETURN(const size_t more, scan->Next(table, kRows, keys.data() + n, planes));
      n += more;
      if (more == 0) break;
    }
    keys.resize(n);
    return Status();
  }));
  return KeyArray(static_cast<py::ssize_t>(keys.size()), keys.data());
}

py::tuple PyGroup::ChangedSince(int table, uint32_t generation) {
  const Changes changes = ValueOrThrow(WithoutGil([&]() -> Result<Changes> {
    TSPS_ASSIGN_OR_RETURN(const auto scan, Scan::Begin(*group_, {table}, KeysAlone()));
    return scan->ChangedSince(table, generation);
  }));
  const auto keys = [](const std::vector<int64_t>& from) {
    return KeyArray(static_cast<py::ssize_t>(from.size()), from.data());
  };
  return py::make_tuple(changes.everything, keys(changes.written), keys(changes.erased));
}

}  // namespace tsps
