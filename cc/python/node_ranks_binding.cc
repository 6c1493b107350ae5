// The class NodeRanks of tf_sparse_ps._table: the ranks of a node, and what they are doing.
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "core/exchange/node_ranks.h"
#include "core/os/process_info.h"
#include "python/convert.h"

namespace tsps {

void BindNodeRanks(py::module_& module) {
  py::class_<RankState>(module, "RankState")
      .def_readonly("rank", &RankState::rank)
      .def_readonly("pid", &RankState::pid)
      .def_readonly("step", &RankState::step)
      .def_readonly("alive", &RankState::alive)
      .def_readonly("left", &RankState::left)
      .def_property_readonly("failure", [](const RankState& state) {
        // The text may end inside of a character.
        return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
            state.failure.data(), static_cast<Py_ssize_t>(state.failure.size()), "replace"));
      });
  py::class_<NodeRanks>(module, "NodeRanks")
      .def_static(
          "open",
          [](const std::string& folder, int local_size) {
            return ValueOrThrow(WithoutGil([&] { return NodeRanks::Open(folder, local_size); }));
          },
          py::arg("folder"), py::arg("local_size"))
      .def(
          "report_progress",
          [](NodeRanks& ranks, int local_rank) { ThrowIfError(ranks.ReportProgress(local_rank)); },
          py::arg("local_rank"))
      .def("look", &NodeRanks::Look);
  module.def("process_state", &DescribeProcess, py::arg("pid"));
}

}  // namespace tsps
