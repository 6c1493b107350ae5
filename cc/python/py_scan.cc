#include <pybind11/stl.h>

#include <algorithm>

#include "python/py_group.h"

namespace tsps {

Status PyScan::Begin(uint64_t limit) {
  Scan::Options options;
  options.limit = limit;
  options.slots_and_metadata = with_slots_;
  TSPS_ASSIGN_OR_RETURN(scan_, Scan::Begin(*group_, {table_}, options));
  return Status();
}

py::tuple PyScan::Next(size_t n) {
  Scan& scan = Open();
  const PlaneList& list = scan.Planes(table_);
  std::vector<size_t> wanted = {0};
  for (size_t p = 1; with_slots_ && p < list.planes.size(); ++p) {
    if (p < list.trained() || p >= list.first_metadata()) wanted.push_back(p);
  }
  n = std::min<size_t>(n, Rows());
  std::vector<int64_t> keys(n);
  std::vector<std::vector<char>> values(list.planes.size());
  char* planes[kMaxPlanes] = {};
  for (const size_t p : wanted) {
    values[p].resize(n * list.planes[p].row_bytes);
    planes[p] = values[p].data();
  }
  const size_t m =
      ValueOrThrow(WithoutGil([&] { return scan.Next(table_, n, keys.data(), planes); }));
  const auto rows_of = [&](size_t p) {
    const size_t bytes = list.planes[p].row_bytes;
    FloatArray rows = NewRows(m, static_cast<int64_t>(bytes / sizeof(float)));
    std::copy_n(values[p].data(), m * bytes, reinterpret_cast<char*>(rows.mutable_data()));
    return rows;
  };
  std::vector<FloatArray> slots;
  py::dict metadata;
  const std::vector<MetadataPlane> declared = MetadataOf(list);
  for (const size_t p : wanted) {
    if (p == 0) continue;
    if (p < list.trained()) {
      slots.push_back(rows_of(p));
      continue;
    }
    const MetadataPlane& plane = declared[p - list.first_metadata()];
    py::array one = NewMetadata(plane, m);
    std::copy_n(values[p].data(), m * list.planes[p].row_bytes,
                static_cast<char*>(one.mutable_data()));
    metadata[py::str(plane.name)] = std::move(one);
  }
  const Plane& embedding = list.embedding();
  const auto dim = static_cast<int64_t>(embedding.row_bytes / ElementBytes(embedding.type));
  return py::make_tuple(KeyArray(static_cast<py::ssize_t>(m), keys.data()),
                        WidenRows(embedding.type, values[0].data(), m, dim), slots, metadata);
}

std::unique_ptr<PyScan> PyGroup::BeginScan(int table, bool with_slots, uint64_t limit) {
  auto scan = std::make_unique<PyScan>(group_, table, with_slots);
  ThrowIfError(WithoutGil([&] { return scan->Begin(limit); }));
  return scan;
}

}  // namespace tsps
