// The border between Python and the core: NumPy arrays as typed spans, and the one place where a
// Status becomes a Python exception (convert.cc).
#ifndef TFSPS_PYTHON_CONVERT_H_
#define TFSPS_PYTHON_CONVERT_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/table/initializer.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

namespace py = pybind11;

using KeyArray = py::array_t<int64_t, py::array::c_style>;
using CountArray = py::array_t<int32_t, py::array::c_style>;
using FloatArray = py::array_t<float, py::array::c_style>;

// Raises the class of tf_sparse_ps/errors.py that belongs to the status' code. Needs the GIL.
[[noreturn]] void Throw(const Status& status);
inline void ThrowIfError(const Status& status) {
  if (!status.ok()) Throw(status);
}
template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) Throw(result.status());
  return std::move(*result);
}

// Runs `body`, which touches no Python object, without the GIL.
template <typename Body>
auto WithoutGil(const Body& body) {
  const py::gil_scoped_release release;
  return body();
}

size_t KeyCount(const KeyArray& keys);
// Raises InvalidArgument unless the array is [n, dim]; `name` is for the message.
void CheckRows(const FloatArray& rows, size_t n, int64_t dim, const char* name);
FloatArray NewRows(size_t n, int64_t dim);

// {"kind": "adagrad", "slot_init": (0.1,)}; kind "none" for no optimizer.
py::dict ToPython(const OptimizerConfig& config);
// (id, steps).
py::tuple ToPython(const OptimizerUse& optimizer);
// Floats per row of each slot of a rule, in a table with rows of `dim` floats.
std::vector<size_t> SlotWidths(const std::string& kind, int64_t dim);
OptimizerConfig OptimizerFromPython(const std::string& kind, const std::vector<float>& slot_init);
// {"kind": "uniform", "a": -0.05, "b": 0.05, "seed": 1, "salt": 0}
py::dict ToPython(const InitializerConfig& config);
InitializerConfig InitializerFromPython(const py::dict& config);

// Metadata planes: [{"name": "count", "type": "uint32", "elements": 1, "initial": 0}], `initial`
// in bits.
py::list ToPython(const std::vector<MetadataPlane>& metadata);
std::vector<MetadataPlane> MetadataFromPython(const py::list& metadata);
// Values of metadata planes, by name: arrays [n, elements] of the plane's type; a bfloat16 is a
// uint16 of its bits.
using MetadataArrays = std::map<std::string, py::array>;
py::array NewMetadata(const MetadataPlane& plane, size_t n);
// Raises InvalidArgument unless the arrays are values of n rows of these planes, or of some.
void CheckMetadata(const MetadataArrays& arrays, const std::vector<MetadataPlane>& planes, size_t n,
                   const std::string& whose);

// Rows of a table as floats. `stored`: n of them, as they are stored.
FloatArray WidenRows(PlaneType type, const char* stored, size_t n, int64_t dim);

// The initial rows of keys in a table with this initializer.
// int32[n]: which of a job's nodes has the row of each key of a sharded table.
py::array_t<int32_t> Owners(const KeyArray& keys, int64_t nodes);
FloatArray InitialRows(const py::dict& initializer, const KeyArray& keys, int64_t dim);

// Registers the classes of the other files.
void BindGroup(py::module_& module);
void BindNodeRanks(py::module_& module);
void BindParameterFile(py::module_& module);

}  // namespace tsps

#endif  // TFSPS_PYTHON_CONVERT_H_
