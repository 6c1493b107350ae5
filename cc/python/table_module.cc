// tf_sparse_ps._table: the Python module of the core, without TensorFlow.
#include <pybind11/stl.h>

#include "core/os/exit_deadline.h"
#include "python/convert.h"

PYBIND11_MODULE(_table, module) {
  module.doc() =
      "Table groups, sparse-parameter files and served tables. Private: use tf_sparse_ps.Table.";
  tsps::BindGroup(module);
  tsps::BindNodeRanks(module);
  tsps::BindRankCounters(module);
  tsps::BindParameterFile(module);
  tsps::BindServing(module);
  module.def("slot_widths", &tsps::SlotWidths, pybind11::arg("kind"), pybind11::arg("dim"),
             "Returns the floats per row of each slot of an update rule.");
  module.def("owners", &tsps::Owners, pybind11::arg("keys"), pybind11::arg("nodes"));
  module.def("initial_rows", &tsps::InitialRowsOfKeys, pybind11::arg("initializer"),
             pybind11::arg("keys").noconvert(), pybind11::arg("dim"),
             "Returns the initial rows, float[n, dim], of keys int64[n].");
  // `cancel` waits for a thread that never takes the GIL.
  pybind11::class_<tsps::ExitDeadline>(module, "ExitDeadline")
      .def(pybind11::init<double, std::string>(), pybind11::arg("seconds"),
           pybind11::arg("message"),
           "Ends the process with a line on standard error unless it is cancelled in time, also "
           "while another library has the GIL.")
      .def("cancel", &tsps::ExitDeadline::Cancel);
}
