#include <pybind11/stl.h>

#include <algorithm>

#include "core/base/racy_copy.h"
#include "python/py_group.h"

namespace tsps {

py::dict PyGroup::Info() const {
  const GroupInfo info = WithoutGil([&] { return group_->Info(); });
  py::dict result;
  result["path"] = info.path;
  result["uuid"] = info.uuid;
  result["step"] = info.step;
  result["version"] = info.version;
  result["writer_pid"] = info.writer_pid;
  result["writer_alive"] = info.writer_alive;
  result["unfinished"] = info.unfinished;
  result["bytes"] = info.bytes;
  return result;
}

py::dict PyGroup::Counters() const {
  const GroupCounters& counters = group_->counters();
  py::dict result;
  result["read_retries"] = counters.read_retries.load();
  result["read_blocked_ns_max"] = counters.read_blocked_ns_max.load();
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
  return result;
}

py::dict PyGroup::Stats(int table) {
  TableStats stats;
  ThrowIfError(Read([&](const ReadView& view) {
    stats = view.Stats(table);
    return Status();
  }));
  py::dict result;
  result["rows"] = stats.rows;
  result["row_capacity"] = stats.row_capacity;
  result["segments"] = stats.segments;
  result["bytes"] = stats.bytes;
  result["optimizer"] = ToPython(stats.optimizer);
  return result;
}

FloatArray PyGroup::Lookup(int table, const KeyArray& keys) {
  const auto known = Config(table);
  const TableConfig& config = *known;
  const size_t n = KeyCount(keys);
  const int64_t* key_data = keys.data();
  ThrowIfError(CheckKeys(config, key_data, n));
  FloatArray rows = NewRows(n, config.dim);
  float* out = rows.mutable_data();
  const auto dim = static_cast<size_t>(config.dim);
  std::vector<const float*> found(n);
  ThrowIfError(Read([&](const ReadView& view) {
    view.Find(table, key_data, n, found.data());
    executor_->ParallelFor(n, 1024, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (found[i] != nullptr) RacyRead(out + i * dim, found[i], dim * sizeof(float));
      }
    });
    return Status();
  }));
  WithoutGil([&] {
    for (size_t i = 0; i < n; ++i) {
      if (found[i] == nullptr) InitialRow(config.initializer, key_data[i], dim, out + i * dim);
    }
  });
  return rows;
}

py::tuple PyGroup::LookupTables(const std::vector<std::pair<int, KeyArray>>& parts) {
  struct Part {
    std::shared_ptr<const TableConfig> config;
    const int64_t* keys;
    float* out;
    std::vector<const float*> found;
  };
  std::vector<Part> work;
  std::vector<FloatArray> rows;
  for (const auto& [table, keys] : parts) {
    auto config = Config(table);
    const size_t n = KeyCount(keys);
    ThrowIfError(CheckKeys(*config, keys.data(), n));
    rows.push_back(NewRows(n, config->dim));
    work.push_back(
        {std::move(config), keys.data(), rows.back().mutable_data(), std::vector<const float*>(n)});
  }
  uint64_t step = 0;
  ThrowIfError(Read([&](const ReadView& view) {
    step = view.step();
    for (size_t p = 0; p < work.size(); ++p) {
      Part& part = work[p];
      const auto dim = static_cast<size_t>(part.config->dim);
      view.Find(parts[p].first, part.keys, part.found.size(), part.found.data());
      for (size_t i = 0; i < part.found.size(); ++i) {
        if (part.found[i] != nullptr)
          RacyRead(part.out + i * dim, part.found[i], dim * sizeof(float));
      }
    }
    return Status();
  }));
  for (const Part& part : work) {
    const auto dim = static_cast<size_t>(part.config->dim);
    for (size_t i = 0; i < part.found.size(); ++i) {
      if (part.found[i] == nullptr)
        InitialRow(part.config->initializer, part.keys[i], dim, part.out + i * dim);
    }
  }
  return py::make_tuple(step, rows);
}

py::tuple PyGroup::Entries(int table, const KeyArray& keys, bool with_slots) {
  const auto config = Config(table);
  const size_t n = KeyCount(keys);
  const int64_t* key_data = keys.data();
  const int64_t dim = config->dim;
  const auto width = static_cast<size_t>(dim);
  py::array_t<bool> found(static_cast<py::ssize_t>(n));
  FloatArray rows = NewRows(n, dim);
  std::vector<FloatArray> slots;
  OptimizerKind kind = OptimizerKind::kNone;
  if (with_slots) {
    ThrowIfError(Read([&](const ReadView& view) {
      kind = view.Stats(table).optimizer.kind;
      return Status();
    }));
  }
  std::vector<float*> slot_data;
  for (int slot = 0; slot < SlotCount(kind); ++slot) {
    slots.push_back(NewRows(n, dim));
    slot_data.push_back(slots.back().mutable_data());
  }
  bool* found_data = found.mutable_data();
  float* row_data = rows.mutable_data();
  std::vector<uint32_t> numbers(n);
  ThrowIfError(Read([&](const ReadView& view) -> Status {
    if (with_slots && view.Stats(table).optimizer.kind != kind) {
      return Error(Code::kUnavailable, "table ", config->name, " of ", group_->path(),
                   " got another optimizer while it was read");
    }
    view.FindRows(table, key_data, n, numbers.data());
    for (size_t i = 0; i < n; ++i) {
      found_data[i] = numbers[i] != kAbsentRow;
      if (!found_data[i]) {
        std::fill_n(row_data + i * width, width, 0.0f);
        for (float* values : slot_data) std::fill_n(values + i * width, width, 0.0f);
        continue;
      }
      RacyRead(row_data + i * width, view.Row(table, numbers[i]), width * sizeof(float));
      for (size_t slot = 0; slot < slot_data.size(); ++slot) {
        const float* const row = view.Slot(table, static_cast<int>(slot), numbers[i]);
        if (row == nullptr) {
          return Error(Code::kUnavailable, "the slots of table ", config->name, " of ",
                       group_->path(), " were replaced while they were read");
        }
        RacyRead(slot_data[slot] + i * width, row, width * sizeof(float));
      }
    }
    return Status();
  }));
  return py::make_tuple(std::move(found), std::move(rows), std::move(slots));
}

KeyArray PyGroup::Keys(int table) {
  std::vector<int64_t> keys;
  ThrowIfError(Read([&](const ReadView& view) {
    keys.clear();
    view.ForEach(table, [&](int64_t key, uint32_t) { keys.push_back(key); });
    return Status();
  }));
  return KeyArray(static_cast<py::ssize_t>(keys.size()), keys.data());
}

py::tuple PyGroup::ChangedSince(int table, uint32_t generation) {
  Changes changes;
  ThrowIfError(Read([&](const ReadView& view) {
    changes = view.ChangedSince(table, generation);
    return Status();
  }));
  const auto keys = [](const std::vector<int64_t>& from) {
    return KeyArray(static_cast<py::ssize_t>(from.size()), from.data());
  };
  return py::make_tuple(changes.everything, keys(changes.written), keys(changes.erased));
}

}  // namespace tsps
