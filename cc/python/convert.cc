#include "python/convert.h"

#include <algorithm>

#include "core/base/key_owner.h"
#include "core/table/planes.h"

namespace tsps {

namespace {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      break;
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kOutOfRange:
      return "out_of_range";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kPermissionDenied:
      return "permission_denied";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kAborted:
      return "aborted";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace

void Throw(const Status& status) {
  const py::object type =
      py::module_::import("tf_sparse_ps.errors").attr("BY_CODE")[CodeName(status.code())];
  // Paths, and names in damaged files, may not be UTF-8.
  const std::string& text = status.message();
  const auto message = py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  PyErr_SetObject(type.ptr(), message.ptr());
  throw py::error_already_set();
}

size_t KeyCount(const KeyArray& keys) {
  if (keys.ndim() != 1) {
    Throw(Error(Code::kInvalidArgument, "keys must have one dimension. Received: ", keys.ndim()));
  }
  return static_cast<size_t>(keys.shape(0));
}

void CheckRows(const FloatArray& rows, size_t n, int64_t dim, const char* name) {
  if (rows.ndim() == 2 && static_cast<size_t>(rows.shape(0)) == n && rows.shape(1) == dim) return;
  std::string shape;
  for (py::ssize_t axis = 0; axis < rows.ndim(); ++axis) {
    shape += (axis > 0 ? ", " : "") + std::to_string(rows.shape(axis));
  }
  Throw(Error(Code::kInvalidArgument, name, " must have the shape [", n, ", ", dim,
              "]. Received: [", shape, "]"));
}

FloatArray NewRows(size_t n, int64_t dim) {
  return FloatArray({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(dim)});
}

FloatArray WidenRows(PlaneType type, const char* stored, size_t n, int64_t dim) {
  FloatArray rows = NewRows(n, dim);
  if (n > 0) WidenRow(type, stored, n * static_cast<size_t>(dim), rows.mutable_data());
  return rows;
}

py::dict ToPython(const OptimizerConfig& config) {
  py::tuple slot_init(SlotCount(config.kind));
  for (int slot = 0; slot < SlotCount(config.kind); ++slot)
    slot_init[slot] = config.slot_init[slot];
  py::dict result;
  result["kind"] = OptimizerKindName(config.kind);
  result["slot_init"] = slot_init;
  return result;
}

py::tuple ToPython(const OptimizerUse& optimizer) {
  return py::make_tuple(optimizer.id, optimizer.steps);
}

std::vector<size_t> SlotWidths(const std::string& kind, int64_t dim) {
  const OptimizerKind rule = ValueOrThrow(OptimizerKindFromName(kind));
  if (dim < 1) Throw(Error(Code::kInvalidArgument, "dim must be positive. Received: ", dim));
  std::vector<size_t> widths;
  for (int slot = 0; slot < SlotCount(rule); ++slot) {
    widths.push_back(SlotWidth(rule, slot, static_cast<size_t>(dim)));
  }
  return widths;
}

OptimizerConfig OptimizerFromPython(const std::string& kind, const std::vector<float>& slot_init) {
  OptimizerConfig config;
  config.kind = ValueOrThrow(OptimizerKindFromName(kind));
  const auto slots = static_cast<size_t>(SlotCount(config.kind));
  if (slot_init.size() != slots) {
    Throw(Error(Code::kInvalidArgument, "slot_init of ", kind, " must have ", slots,
                " values. Received: ", slot_init.size()));
  }
  std::copy(slot_init.begin(), slot_init.end(), config.slot_init);
  return config;
}

py::dict ToPython(const InitializerConfig& config) {
  py::dict result;
  result["kind"] = InitializerKindName(config.kind);
  result["a"] = config.a;
  result["b"] = config.b;
  result["seed"] = config.seed;
  result["salt"] = config.salt;
  return result;
}

InitializerConfig InitializerFromPython(const py::dict& config) {
  InitializerConfig result;
  result.kind = ValueOrThrow(InitializerKindFromName(config["kind"].cast<std::string>()));
  result.a = config["a"].cast<float>();
  result.b = config["b"].cast<float>();
  result.seed = config["seed"].cast<uint64_t>();
  result.salt = config["salt"].cast<uint64_t>();
  ThrowIfError(ValidateInitializer(result));
  return result;
}

namespace {

py::dtype DtypeOf(PlaneType type) {
  switch (type) {
    case PlaneType::kFloat32:
      return py::dtype("float32");
    case PlaneType::kBfloat16:
      return py::dtype("uint16");
    case PlaneType::kFloat16:
      return py::dtype("float16");
    case PlaneType::kUint32:
      return py::dtype("uint32");
    case PlaneType::kInt64:
      return py::dtype("int64");
  }
  Throw(Error(Code::kInternal, "plane type ", static_cast<uint32_t>(type), " is unknown"));
}

}  // namespace

py::list ToPython(const std::vector<MetadataPlane>& metadata) {
  py::list result;
  for (const MetadataPlane& plane : metadata) {
    py::dict item;
    item["name"] = plane.name;
    item["type"] = PlaneTypeName(plane.type);
    item["elements"] = plane.elements;
    item["initial"] = plane.initial;
    result.append(std::move(item));
  }
  return result;
}

std::vector<MetadataPlane> MetadataFromPython(const py::list& metadata) {
  std::vector<MetadataPlane> result;
  for (const py::handle& item : metadata) {
    result.push_back({item["name"].cast<std::string>(),
                      ValueOrThrow(PlaneTypeFromName(item["type"].cast<std::string>())),
                      item["elements"].cast<uint32_t>(), item["initial"].cast<uint64_t>()});
  }
  return result;
}

py::array NewMetadata(const MetadataPlane& plane, size_t n) {
  return py::array(DtypeOf(plane.type), std::vector<size_t>{n, plane.elements});
}

void CheckMetadata(const MetadataArrays& arrays, const std::vector<MetadataPlane>& planes, size_t n,
                   const std::string& whose) {
  for (const auto& [name, array] : arrays) {
    const auto has_name = [&](const MetadataPlane& plane) { return plane.name == name; };
    const auto plane = std::find_if(planes.begin(), planes.end(), has_name);
    if (plane == planes.end()) {
      Throw(Error(Code::kInvalidArgument, whose, " has no metadata plane '", name, "'"));
    }
    const py::dtype dtype = DtypeOf(plane->type);
    if (array.ndim() == 2 && static_cast<size_t>(array.shape(0)) == n &&
        array.shape(1) == static_cast<py::ssize_t>(plane->elements) && array.dtype().equal(dtype) &&
        (array.flags() & py::array::c_style) != 0) {
      continue;
    }
    Throw(Error(Code::kInvalidArgument, "metadata plane '", name, "' of ", whose,
                " must be a contiguous array of ", py::str(py::handle(dtype)).cast<std::string>(),
                "[", n, ", ", plane->elements,
                "]. Received: ", py::str(py::handle(array.dtype())).cast<std::string>(),
                py::str(py::object(array.attr("shape"))).cast<std::string>()));
  }
}

py::array_t<int32_t> Owners(const KeyArray& keys, int64_t nodes) {
  if (nodes < 1 || nodes > UINT32_MAX) {
    Throw(Error(Code::kInvalidArgument, "nodes must be positive. Received: ", nodes));
  }
  const size_t n = KeyCount(keys);
  py::array_t<int32_t> owners(static_cast<py::ssize_t>(n));
  const int64_t* key_data = keys.data();
  int32_t* out = owners.mutable_data();
  WithoutGil([&] {
    for (size_t i = 0; i < n; ++i) {
      out[i] = static_cast<int32_t>(OwnerOf(key_data[i], static_cast<uint32_t>(nodes)));
    }
  });
  return owners;
}

FloatArray InitialRowsOfKeys(const py::dict& initializer, const KeyArray& keys, int64_t dim) {
  const InitializerConfig config = InitializerFromPython(initializer);
  const size_t n = KeyCount(keys);
  if (dim < 1) Throw(Error(Code::kInvalidArgument, "dim must be positive. Received: ", dim));
  FloatArray rows = NewRows(n, dim);
  const int64_t* key_data = keys.data();
  float* out = rows.mutable_data();
  WithoutGil([&] { InitialRows(config, key_data, n, static_cast<size_t>(dim), out); });
  return rows;
}

}  // namespace tsps
