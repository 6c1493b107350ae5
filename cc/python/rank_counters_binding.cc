// The counters of ranks (core/group/rank_counters.h) in tf_sparse_ps._table.
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "core/group/rank_counters.h"
#include "python/convert.h"

namespace tsps {
namespace {

py::dict ReadRankCounters(const std::string& path) {
  const RankReport report = ValueOrThrow(WithoutGil([&] { return RankCounters::Read(path); }));
  py::dict values;
  for (size_t i = 0; i < report.values.size(); ++i) {
    values[py::str(RankCounters::Names()[i])] = report.values[i];
  }
  py::dict result;
  result["pid"] = report.pid;
  result["started"] = report.started;
  result["rank"] = report.rank;
  result["size"] = report.size;
  result["local_rank"] = report.local_rank;
  result["updated_ns"] = report.updated_ns;
  // The rank may be writing the text.
  result["activity"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      report.activity.data(), static_cast<Py_ssize_t>(report.activity.size()), "replace"));
  result["counters"] = std::move(values);
  return result;
}

}  // namespace

void BindRankCounters(py::module_& module) {
  py::class_<RankCounters>(module, "RankActivity")
      .def_static(
          "open",
          [](const std::string& path) {
            return ValueOrThrow(WithoutGil([&] { return RankCounters::Open(path); }));
          },
          py::arg("path"))
      .def("set", &RankCounters::SetActivity, py::arg("text"));
  module.def("rank_counters", &ReadRankCounters, py::arg("path"));
  module.def("rank_counter_names", &RankCounters::Names);
}

}  // namespace tsps
