// tf_sparse_ps._table: the core for Python, without TensorFlow. tf_sparse_ps/table.py is its only
// user.
#include <pybind11/stl.h>

#include "python/convert.h"

PYBIND11_MODULE(_table, module) {
  module.doc() = "Table groups and sparse-parameter files. Private: use tf_sparse_ps.Table.";
  tsps::BindGroup(module);
  tsps::BindNodeRanks(module);
  tsps::BindParameterFile(module);
  module.def("slot_widths", &tsps::SlotWidths, pybind11::arg("kind"), pybind11::arg("dim"),
             "Floats per row of each slot of an update rule.");
  module.def("initial_rows", &tsps::InitialRows, pybind11::arg("initializer"),
             pybind11::arg("keys").noconvert(), pybind11::arg("dim"),
             "Initial rows float[n, dim] of keys int64[n].");
}
