// PyScan, and PyGroup::BeginScans.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "python/py_group.h"

namespace tsps {

Status PyScan::Begin(std::shared_ptr<Scan> scan, std::optional<uint32_t> since) {
  scan_ = std::move(scan);
  if (!since.has_value()) return Status();
  TSPS_ASSIGN_OR_RETURN(auto erased, scan_->ErasedSince(table_, *since));
  if (!erased.has_value()) return Status();
  erased_ = std::move(*erased);
  since_ = since;
  return Status();
}

py::object PyScan::Erased() const {
  if (!since_.has_value()) return py::none();
  return KeyArray(static_cast<py::ssize_t>(erased_.size()), erased_.data());
}

std::vector<size_t> PyScan::Wanted() const {
  const PlaneList& list = Planes();
  std::vector<size_t> wanted = {0};
  for (size_t p = 1; with_slots_ && p < list.planes.size(); ++p) {
    const PlaneRole role = list.planes[p].role;
    if (role != PlaneRole::kKey && role != PlaneRole::kChanged) wanted.push_back(p);
  }
  return wanted;
}

Result<size_t> PyScan::NextStored(size_t n, int64_t* keys, char* const* planes) {
  while (true) {
    TSPS_ASSIGN_OR_RETURN(const size_t read,
                          since_.has_value() ? Open().NextChanged(table_, *since_, n, keys, planes)
                                             : Open().Next(table_, n, keys, planes));
    if (read == 0 || nodes_ == 0) return read;
    if (const size_t kept = KeepShard(read, keys, planes); kept > 0) return kept;
  }
}

void PyScan::TakeShard(uint32_t node, uint32_t nodes) {
  if (node >= nodes) {
    Throw(Error(Code::kInvalidArgument, "there is no node ", node, " of ", nodes));
  }
  node_ = node;
  nodes_ = nodes;
  erased_.erase(std::remove_if(erased_.begin(), erased_.end(),
                               [this](int64_t key) { return !IsOfShard(key); }),
                erased_.end());
}

size_t PyScan::KeepShard(size_t n, int64_t* keys, char* const* planes) const {
  const std::vector<Plane>& list = Planes().planes;
  size_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!IsOfShard(keys[i])) continue;
    if (kept < i) {
      keys[kept] = keys[i];
      for (size_t p = 0; p < list.size(); ++p) {
        const size_t bytes = list[p].row_bytes;
        if (planes[p] != nullptr)
          std::memcpy(planes[p] + kept * bytes, planes[p] + i * bytes, bytes);
      }
    }
    ++kept;
  }
  return kept;
}

py::tuple PyScan::Next(size_t n) {
  const PlaneList& list = Planes();
  const std::vector<size_t> wanted = Wanted();
  n = std::min<size_t>(n, Rows());
  std::vector<int64_t> keys(n);
  std::vector<std::vector<char>> values(list.planes.size());
  char* planes[kMaxPlanes] = {};
  for (const size_t p : wanted) {
    values[p].resize(n * list.planes[p].row_bytes);
    planes[p] = values[p].data();
  }
  const size_t m = ValueOrThrow(WithoutGil([&] { return NextStored(n, keys.data(), planes); }));
  const auto rows_of = [&](size_t p) {
    const size_t bytes = list.planes[p].row_bytes;
    FloatArray rows = NewRows(m, static_cast<int64_t>(bytes / sizeof(float)));
    std::copy_n(values[p].data(), m * bytes, reinterpret_cast<char*>(rows.mutable_data()));
    return rows;
  };
  std::vector<FloatArray> slots;
  py::dict metadata;
  const std::vector<MetadataPlane> declared = MetadataOf(list);
  auto next = declared.begin();
  for (const size_t p : wanted) {
    if (p == 0) continue;
    if (list.planes[p].role == PlaneRole::kSlot) {
      slots.push_back(rows_of(p));
      continue;
    }
    const MetadataPlane& plane = *next++;
    py::array array = NewMetadata(plane, m);
    std::copy_n(values[p].data(), m * list.planes[p].row_bytes,
                static_cast<char*>(array.mutable_data()));
    metadata[py::str(plane.name)] = std::move(array);
  }
  const Plane& embedding = list.embedding();
  const auto dim = static_cast<int64_t>(embedding.row_bytes / ElementBytes(embedding.type));
  return py::make_tuple(KeyArray(static_cast<py::ssize_t>(m), keys.data()),
                        WidenRows(embedding.type, values[0].data(), m, dim), slots, metadata);
}

std::vector<std::unique_ptr<PyScan>> PyGroup::BeginScans(
    const std::vector<int>& tables, bool with_slots, uint64_t limit,
    const std::vector<std::optional<uint32_t>>& since) {
  if (since.size() != tables.size() || tables.empty()) {
    Throw(Error(Code::kInvalidArgument,
                "a scan needs one or more tables, and a generation or None for each. Received: ",
                tables.size(), " tables, ", since.size(), " generations"));
  }
  std::vector<std::unique_ptr<PyScan>> scans;
  ThrowIfError(WithoutGil([&]() -> Status {
    Scan::Options options;
    options.limit = limit;
    options.slots_and_metadata = with_slots;
    TSPS_ASSIGN_OR_RETURN(std::shared_ptr<Scan> scan, Scan::Begin(*group_, tables, options));
    for (size_t i = 0; i < tables.size(); ++i) {
      scans.push_back(std::make_unique<PyScan>(group_, tables[i], with_slots));
      TSPS_RETURN_IF_ERROR(scans.back()->Begin(scan, since[i]));
    }
    return Status();
  }));
  return scans;
}

}  // namespace tsps
