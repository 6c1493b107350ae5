// The interface between Python and the core: conversions of NumPy arrays and configurations, and
// the conversion of a Status to a Python exception.
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

// Raises the exception of tf_sparse_ps/errors.py for the code of the status. Needs the GIL.
[[noreturn]] void Throw(const Status& status);
inline void ThrowIfError(const Status& status) {
  if (!status.ok()) Throw(status);
}
template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) Throw(result.status());
  return std::move(*result);
}

// Runs `body` without the GIL. It must not use Python objects.
template <typename Body>
auto WithoutGil(const Body& body) {
  const py::gil_scoped_release release;
  return body();
}

size_t KeyCount(const KeyArray& keys);
// Raises InvalidArgumentError, with `name` in the message, unless the array has the shape [n, dim].
void CheckRows(const FloatArray& rows, size_t n, int64_t dim, const char* name);
FloatArray NewRows(size_t n, int64_t dim);

// Returns {"kind": "adagrad", "slot_init": (0.1,)}; the kind "none" means no optimizer.
py::dict ToPython(const OptimizerConfig& config);
// Returns (id, steps).
py::tuple ToPython(const OptimizerUse& optimizer);
// Returns the floats per row of each slot of an update rule, in a table with rows of `dim` floats.
std::vector<size_t> SlotWidths(const std::string& kind, int64_t dim);
OptimizerConfig OptimizerFromPython(const std::string& kind, const std::vector<float>& slot_init);
// Returns {"kind": "uniform", "a": -0.05, "b": 0.05, "seed": 1, "salt": 0}.
py::dict ToPython(const InitializerConfig& config);
InitializerConfig InitializerFromPython(const py::dict& config);

// Convert metadata planes: [{"name": "count", "type": "uint32", "elements": 1, "initial": 0}].
// `initial` has the bits of the value.
py::list ToPython(const std::vector<MetadataPlane>& metadata);
std::vector<MetadataPlane> MetadataFromPython(const py::list& metadata);
// The values of metadata planes, by name: arrays [n, elements] of the plane's type. A bfloat16 is a
// uint16 with its bits.
using MetadataArrays = std::map<std::string, py::array>;
py::array NewMetadata(const MetadataPlane& plane, size_t n);
// Raises InvalidArgumentError unless each array has the values of n rows of one of these planes.
void CheckMetadata(const MetadataArrays& arrays, const std::vector<MetadataPlane>& planes, size_t n,
                   const std::string& whose);

// Converts n rows of a table from their stored type to floats.
FloatArray WidenRows(PlaneType type, const char* stored, size_t n, int64_t dim);

// Returns the owner of each key of a sharded table, int32[n]: the number of a node.
py::array_t<int32_t> Owners(const KeyArray& keys, int64_t nodes);
// Returns the initial rows of keys in a table with this initializer.
FloatArray InitialRowsOfKeys(const py::dict& initializer, const KeyArray& keys, int64_t dim);

// Bind the classes of the other files.
void BindGroup(py::module_& module);
void BindNodeRanks(py::module_& module);
void BindRankCounters(py::module_& module);
void BindParameterFile(py::module_& module);
void BindServing(py::module_& module);

}  // namespace tsps

#endif  // TFSPS_PYTHON_CONVERT_H_
