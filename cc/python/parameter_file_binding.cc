// The classes ParameterFileReader and ParameterFileWriter of tf_sparse_ps._table.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/files/parameter_file.h"
#include "core/table/layout.h"
#include "python/convert.h"
#include "python/py_group.h"

namespace tsps {

namespace {

py::dict ToPython(const ParameterFileInfo& info) {
  py::dict result;
  result["dim"] = info.dim;
  result["n_rows"] = info.n_rows;
  result["key_limit"] = info.key_limit;
  result["step"] = info.step;
  result["optimizer"] = tsps::ToPython(info.optimizer);
  result["trained_by"] = tsps::ToPython(info.trained_by);
  result["initializer"] = tsps::ToPython(info.initializer);
  result["metadata"] = tsps::ToPython(info.metadata);
  result["dtype"] = PlaneTypeName(info.row_type);
  result["node"] = info.shard.node;
  result["nodes"] = info.shard.nodes;
  return result;
}

class PyParameterFileReader {
 public:
  explicit PyParameterFileReader(const std::string& path)
      : reader_(ValueOrThrow(WithoutGil([&] { return ParameterFileReader::Open(path); }))) {}

  py::dict Info() const { return ToPython(reader_->info()); }
  size_t Blocks() const { return reader_->n_blocks(); }

  // Returns (keys, rows as floats, slots, {metadata plane: values}). Without `with_slots`, slots
  // and metadata are empty.
  py::tuple ReadBlock(size_t block, bool with_slots) const {
    if (block >= reader_->n_blocks()) {
      Throw(Error(Code::kInvalidArgument, "block must be below ", reader_->n_blocks(),
                  ". Received: ", block));
    }
    const ParameterFileInfo& info = reader_->info();
    const size_t n = reader_->rows_in_block(block);
    KeyArray keys(static_cast<py::ssize_t>(n));
    std::vector<char> rows(n * info.dim * ElementBytes(info.row_type));
    py::list slots;
    py::dict metadata;
    std::vector<void*> data(PlanesOf(info).size(), nullptr);
    data[0] = rows.data();
    size_t plane = 1;
    for (int slot = 0; with_slots && slot < SlotCount(info.optimizer.kind); ++slot) {
      const size_t width = SlotWidth(info.optimizer.kind, slot, info.dim);
      FloatArray values = NewRows(n, static_cast<int64_t>(width));
      data[plane++] = values.mutable_data();
      slots.append(std::move(values));
    }
    for (size_t k = 0; with_slots && k < info.metadata.size(); ++k) {
      py::array values = NewMetadata(info.metadata[k], n);
      data[plane++] = values.mutable_data();
      metadata[py::str(info.metadata[k].name)] = std::move(values);
    }
    int64_t* key_data = keys.mutable_data();
    ThrowIfError(WithoutGil([&] { return reader_->ReadBlock(block, key_data, data.data()); }));
    return py::make_tuple(std::move(keys), WidenRows(info.row_type, rows.data(), n, info.dim),
                          std::move(slots), std::move(metadata));
  }

  uint32_t BlockChecksum(size_t block) const { return ValueOrThrow(reader_->BlockChecksum(block)); }

 private:
  std::unique_ptr<ParameterFileReader> reader_;
};

class PyParameterFileWriter {
 public:
  // Creates the file. Without n_rows the writer counts the rows.
  PyParameterFileWriter(const std::string& path, int64_t dim, std::optional<uint64_t> n_rows,
                        int64_t key_limit, uint64_t step, const std::string& optimizer,
                        const std::vector<float>& slot_init, const py::dict& initializer,
                        const py::list& metadata, const std::string& dtype, uint32_t node,
                        uint32_t nodes, std::pair<uint64_t, uint64_t> trained_by) {
    if (dim < 1 || dim > kMaxDim) {
      Throw(Error(Code::kInvalidArgument, "dim must be in [1, ", kMaxDim, "]. Received: ", dim));
    }
    info_.dim = static_cast<uint32_t>(dim);
    info_.n_rows = n_rows.value_or(0);
    info_.key_limit = key_limit;
    info_.step = step;
    info_.optimizer = OptimizerFromPython(optimizer, slot_init);
    info_.initializer = InitializerFromPython(initializer);
    info_.metadata = MetadataFromPython(metadata);
    info_.row_type = ValueOrThrow(PlaneTypeFromName(dtype));
    info_.shard = {node, nodes};
    info_.trained_by = {trained_by.first, trained_by.second};
    writer_ =
        ValueOrThrow(WithoutGil([&] { return ParameterFileWriter::Create(path, info_, !n_rows); }));
  }

  void Append(const KeyArray& keys, const FloatArray& rows, const std::vector<FloatArray>& slots,
              const MetadataArrays& metadata) {
    const size_t n = KeyCount(keys);
    CheckRows(rows, n, info_.dim, "rows");
    const OptimizerKind kind = info_.optimizer.kind;
    if (slots.size() != static_cast<size_t>(SlotCount(kind))) {
      Throw(Error(Code::kInvalidArgument, "expected ", SlotCount(kind),
                  " slots. Received: ", slots.size()));
    }
    CheckMetadata(metadata, info_.metadata, n, "this file");
    if (metadata.size() != info_.metadata.size()) {
      Throw(Error(Code::kInvalidArgument, "expected ", info_.metadata.size(),
                  " metadata planes. Received: ", metadata.size()));
    }
    TableConfig config;
    config.name = "of the file";
    config.dim = info_.dim;
    config.row_type = info_.row_type;
    const StoredRows stored = ValueOrThrow(StoredRows::Of(config, keys.data(), rows.data(), n));
    std::vector<const void*> data = {stored.data()};
    for (int k = 0; k < SlotCount(kind); ++k) {
      const FloatArray& values = slots[static_cast<size_t>(k)];
      CheckRows(values, n, static_cast<int64_t>(SlotWidth(kind, k, info_.dim)), SlotName(kind, k));
      data.push_back(values.data());
    }
    for (const MetadataPlane& plane : info_.metadata) {
      data.push_back(metadata.at(plane.name).data());
    }
    const int64_t* key_data = keys.data();
    ParameterFileWriter& writer = Open();
    ThrowIfError(WithoutGil([&] { return writer.Append(key_data, data.data(), n); }));
  }

  // Appends the next rows of a scan, about at_most of them. Returns their number, 0 at the end.
  // Runs without the GIL.
  size_t AppendScan(PyScan& scan, size_t at_most) {
    ParameterFileWriter& writer = Open();
    const std::vector<Plane> file_planes = PlanesOf(info_);
    const std::vector<size_t> wanted = scan.Wanted();
    const std::vector<Plane>& planes = scan.Planes().planes;
    bool same = file_planes.size() == wanted.size();
    for (size_t i = 0; same && i < file_planes.size(); ++i) {
      const Plane& plane = planes[wanted[i]];
      same = file_planes[i].type == plane.type && file_planes[i].row_bytes == plane.row_bytes;
    }
    if (!same) {
      Throw(Error(Code::kInvalidArgument,
                  "the scan has other planes than the file. No row was appended"));
    }
    constexpr size_t kRows = 1024;  // few enough to stay in a cache until they are written
    return ValueOrThrow(WithoutGil([&]() -> Result<size_t> {
      std::vector<int64_t> keys(kRows);
      std::vector<std::vector<char>> values(file_planes.size());
      std::vector<const void*> from(file_planes.size());
      char* to[kMaxPlanes] = {};
      for (size_t i = 0; i < file_planes.size(); ++i) {
        values[i].resize(kRows * file_planes[i].row_bytes);
        from[i] = to[wanted[i]] = values[i].data();
      }
      size_t done = 0;
      while (done < at_most) {
        TSPS_ASSIGN_OR_RETURN(const size_t n, scan.NextStored(kRows, keys.data(), to));
        if (n == 0) break;
        TSPS_RETURN_IF_ERROR(writer.Append(keys.data(), from.data(), n));
        done += n;
      }
      return done;
    }));
  }

  // Completes the file. Returns the checksum of its bytes, and that of its blocks' checksums.
  py::tuple Finish() {
    ParameterFileWriter& writer = Open();
    ThrowIfError(WithoutGil([&] { return writer.Finish(); }));
    return py::make_tuple(writer.checksums().file, writer.checksums().blocks);
  }

  // Discards an unfinished file, and releases the path.
  void Close() { writer_.reset(); }

 private:
  ParameterFileWriter& Open() {
    if (writer_ == nullptr) Throw(Error(Code::kFailedPrecondition, "this writer is closed"));
    return *writer_;
  }

  ParameterFileInfo info_;
  std::unique_ptr<ParameterFileWriter> writer_;
};

}  // namespace

void BindParameterFile(py::module_& module) {
  py::class_<PyParameterFileReader>(module, "ParameterFileReader")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("info", &PyParameterFileReader::Info)
      .def("blocks", &PyParameterFileReader::Blocks)
      .def("read_block", &PyParameterFileReader::ReadBlock, py::arg("block"), py::arg("with_slots"))
      .def("block_checksum", &PyParameterFileReader::BlockChecksum, py::arg("block"));
  py::class_<PyParameterFileWriter>(module, "ParameterFileWriter")
      .def(py::init<const std::string&, int64_t, std::optional<uint64_t>, int64_t, uint64_t,
                    const std::string&, const std::vector<float>&, const py::dict&, const py::list&,
                    const std::string&, uint32_t, uint32_t, std::pair<uint64_t, uint64_t>>(),
           py::kw_only(), py::arg("path"), py::arg("dim"), py::arg("n_rows"), py::arg("key_limit"),
           py::arg("step"), py::arg("optimizer"), py::arg("slot_init"), py::arg("initializer"),
           py::arg("metadata") = py::list(), py::arg("dtype") = "float32", py::arg("node") = 0,
           py::arg("nodes") = 0, py::arg("trained_by") = std::pair<uint64_t, uint64_t>(0, 0))
      .def("append", &PyParameterFileWriter::Append, py::arg("keys").noconvert(),
           py::arg("rows").noconvert(), py::arg("slots"), py::arg("metadata") = MetadataArrays())
      .def("append_scan", &PyParameterFileWriter::AppendScan, py::arg("scan"), py::arg("at_most"))
      .def("finish", &PyParameterFileWriter::Finish)
      .def("close", &PyParameterFileWriter::Close);
}

}  // namespace tsps
