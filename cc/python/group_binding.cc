// The classes Group and Scan of tf_sparse_ps._table.
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "core/os/directory.h"
#include "core/os/file_lock.h"
#include "core/os/mapped_file.h"
#include "core/table/tiered_storage.h"
#include "python/py_group.h"

namespace tsps {

namespace {

// Returns whether a group has a writer. Does not open the group, which another build may have
// created.
bool HasWriter(const std::string& path) {
  auto probe = LockProbe::Open(path + "/writer.lock");
  if (!probe.ok() && probe.status().code() == Code::kNotFound) return false;
  return ValueOrThrow(std::move(probe))->Held();
}

// Removes the rows on disk of all tables of a group that is not needed any more. The group may be
// damaged.
void RemoveRowsOnDisk(const std::string& path) {
  for (const std::string& table : EntriesOf(path)) RemoveStorage(path + "/" + table);
}

}  // namespace

void BindGroup(py::module_& module) {
  module.def("has_writer", &HasWriter, py::arg("path"));
  module.def("remove_rows_on_disk", &RemoveRowsOnDisk, py::arg("path"));
  py::class_<PyScan>(module, "Scan")
      .def("step", &PyScan::Step)
      .def("rows", &PyScan::Rows)
      .def("optimizer", &PyScan::Optimizer)
      .def("trained_by", &PyScan::TrainedBy)
      .def("next", &PyScan::Next, py::arg("n"))
      .def("row_numbers", &PyScan::RowNumbers)
      .def("skip_to", &PyScan::SkipTo, py::arg("row"))
      .def("erased", &PyScan::Erased)
      .def("take_shard", &PyScan::TakeShard, py::arg("node"), py::arg("nodes"))
      .def("close", &PyScan::Close);
  py::class_<PyGroup>(module, "Group")
      .def_static(
          "create",
          [](const std::string& path, const std::string& uuid, int threads,
             std::optional<std::pair<uint64_t, uint64_t>> draw) {
            const GroupDraw drawn =
                draw.has_value() ? GroupDraw{draw->first, draw->second} : GroupDraw::Random();
            return std::make_unique<PyGroup>(
                ValueOrThrow(WithoutGil([&] { return Group::Create(path, uuid, drawn); })),
                threads);
          },
          py::arg("path"), py::arg("uuid"), py::arg("threads") = 0, py::arg("draw") = py::none())
      .def_static(
          "open",
          [](const std::string& path, int threads) {
            return std::make_unique<PyGroup>(
                ValueOrThrow(WithoutGil([&] { return Group::Open(path); })), threads);
          },
          py::arg("path"), py::arg("threads") = 0)
      .def("open_writer", &PyGroup::OpenWriter)
      .def("close_writer", &PyGroup::CloseWriter)
      .def("in_place", &PyGroup::InPlace)
      .def("info", &PyGroup::Info)
      .def("counters", &PyGroup::Counters)
      .def("life", &PyGroup::Life)
      .def("step", &PyGroup::Step)
      .def("find_table", &PyGroup::FindTable, py::arg("name"))
      .def("tables", &PyGroup::Tables)
      .def("forget_table", &PyGroup::ForgetTable, py::arg("name"))
      .def("table_info", &PyGroup::TableInfo, py::arg("table"))
      .def("stats", &PyGroup::Stats, py::arg("table"))
      .def("create_table", &PyGroup::CreateTable, py::kw_only(), py::arg("name"), py::arg("uuid"),
           py::arg("dim"), py::arg("key_limit"), py::arg("max_rows"), py::arg("initializer"),
           py::arg("metadata") = py::list(), py::arg("dtype") = "float32",
           py::arg("rounding") = "stochastic", py::arg("storage_folder") = "",
           py::arg("storage_memory") = 0, py::arg("storage_file_bytes") = 0, py::arg("node") = 0,
           py::arg("nodes") = 0)
      .def("remove_table", &PyGroup::RemoveTable, py::arg("table"))
      .def("set_admission", &PyGroup::SetAdmission, py::arg("table"), py::arg("count"),
           py::arg("half_life"), py::arg("expected_keys"))
      .def("sketch_of", &PyGroup::SketchOf, py::arg("table"))
      .def("sketch_fill", &PyGroup::SketchFill, py::arg("table"), py::arg("sketch"),
           py::arg("count"), py::arg("half_life"))
      .def("oldest_use", &PyGroup::OldestUse, py::arg("table"))
      .def("set_eviction", &PyGroup::SetEviction, py::arg("table"), py::arg("order"),
           py::arg("unused_steps"), py::arg("max_rows"), py::arg("half_life"), py::arg("keep"))
      .def("stop_policies", &PyGroup::StopPolicies, py::arg("table"))
      .def("bind_optimizer", &PyGroup::BindOptimizer, py::arg("table"), py::arg("kind"),
           py::arg("slot_init"), py::arg("replace"))
      .def("set_optimizer", &PyGroup::SetOptimizer, py::arg("table"), py::arg("id"),
           py::arg("steps"))
      .def("lookup", &PyGroup::Lookup, py::arg("table"), py::arg("keys").noconvert())
      .def("lookup_tables", &PyGroup::LookupTables, py::arg("parts"))
      .def("entries", &PyGroup::Entries, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("with_slots"))
      .def("metadata", &PyGroup::Metadata, py::arg("table"), py::arg("keys").noconvert())
      .def("keys", &PyGroup::Keys, py::arg("table"))
      .def("scans", &PyGroup::BeginScans, py::arg("tables"), py::arg("with_slots"),
           py::arg("limit"), py::arg("since"))
      .def("mark_changes", &PyGroup::MarkChanges)
      .def("changed_since", &PyGroup::ChangedSince, py::arg("table"), py::arg("generation"))
      .def("apply_step", &PyGroup::ApplyStep, py::arg("step"), py::arg("updates"))
      .def("assign", &PyGroup::Assign, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("rows").noconvert(), py::arg("slots"), py::arg("metadata") = MetadataArrays())
      .def("erase", &PyGroup::Erase, py::arg("table"), py::arg("keys").noconvert())
      .def("set_step", &PyGroup::SetStep, py::arg("step"))
      .def("verify", &PyGroup::Verify, py::arg("table"));
}

}  // namespace tsps
