#include <pybind11/stl.h>

#include <algorithm>

#include "python/py_group.h"

namespace tsps {

Status PyScan::Begin(uint64_t limit) {
  Scan::Options options;
  options.limit = limit;
  TSPS_ASSIGN_OR_RETURN(scan_, Scan::Begin(*group_, {table_}, options));
  return Status();
}

py::tuple PyScan::Next(size_t n) {
  Scan& scan = Open();
  const PlaneList& list = scan.Planes(table_);
  const size_t n_planes = with_slots_ ? list.trained() : 1;
  n = std::min<size_t>(n, Rows());
  std::vector<int64_t> keys(n);
  std::vector<std::vector<float>> values(n_planes);
  char* planes[kMaxPlanes] = {};
  for (size_t p = 0; p < n_planes; ++p) {
    values[p].resize(n * list.planes[p].row_bytes / sizeof(float));
    planes[p] = reinterpret_cast<char*>(values[p].data());
  }
  const size_t m =
      ValueOrThrow(WithoutGil([&] { return scan.Next(table_, n, keys.data(), planes); }));
  std::vector<FloatArray> arrays;
  for (size_t p = 0; p < n_planes; ++p) {
    const size_t width = list.planes[p].row_bytes / sizeof(float);
    arrays.push_back(NewRows(m, static_cast<int64_t>(width)));
    std::copy_n(values[p].data(), m * width, arrays.back().mutable_data());
  }
  return py::make_tuple(KeyArray(static_cast<py::ssize_t>(m), keys.data()), arrays[0],
                        std::vector<FloatArray>(arrays.begin() + 1, arrays.end()));
}

std::unique_ptr<PyScan> PyGroup::BeginScan(int table, bool with_slots, uint64_t limit) {
  auto scan = std::make_unique<PyScan>(group_, table, with_slots);
  ThrowIfError(WithoutGil([&] { return scan->Begin(limit); }));
  return scan;
}

}  // namespace tsps
