// The classes ServingTable, ServingFiles and ServingRows of tf_sparse_ps._table, and functions for
// the files of served versions.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/serving/entry_sorter.h"
#include "core/serving/layer_difference.h"
#include "core/serving/layer_merge.h"
#include "core/serving/serving_table.h"
#include "core/serving/serving_writer.h"
#include "core/serving/table_manifest.h"
#include "executor/eigen_executor.h"
#include "python/convert.h"
#include "python/py_group.h"

namespace tsps {
namespace {

using FileList = std::vector<std::shared_ptr<const ServingFile>>;

py::dict ToPython(const CodeError& error) {
  py::dict result;
  result["max"] = error.max;
  result["mean"] = error.rows == 0 ? 0.0 : error.sum / static_cast<double>(error.rows);
  result["over"] =
      error.rows == 0 ? 0.0 : static_cast<double>(error.over) / static_cast<double>(error.rows);
  result["bound"] = CodeError::kBound;
  return result;
}

py::dict ToPython(const ServingFile& file) {
  const ServingHeader& header = file.header();
  py::dict result;
  result["path"] = file.path();
  result["layer"] = header.is_layer == 1;
  result["dim"] = header.dim;
  result["rows"] = RowCodeName(file.row_code());
  result["dtype"] = PlaneTypeName(static_cast<PlaneType>(header.row_type));
  result["table_uuid"] = std::string(header.table_uuid, sizeof(header.table_uuid));
  result["hash_seed"] = header.hash_seed;
  result["first_sequence"] = header.first_sequence;
  result["last_sequence"] = header.last_sequence;
  result["step"] = header.step;
  result["key_limit"] = header.key_limit;
  result["initializer"] = tsps::ToPython(file.initializer());
  result["n_keys"] = header.n_keys;
  result["n_rows"] = header.n_rows;
  result["row_bytes"] = header.row_bytes;
  result["bytes"] = header.file_bytes;
  result["crc"] = header.crc;
  result["error"] = ToPython(file.error());
  return result;
}

ServingInfo InfoFromPython(const py::dict& facts) {
  ServingInfo info;
  info.dim = facts["dim"].cast<uint32_t>();
  info.row_code = ValueOrThrow(RowCodeFromName(facts["rows"].cast<std::string>()));
  info.row_type = ValueOrThrow(PlaneTypeFromName(facts["dtype"].cast<std::string>()));
  info.table_uuid = facts["table_uuid"].cast<std::string>();
  info.hash_seed = facts["hash_seed"].cast<uint64_t>();
  info.first_sequence = facts["first_sequence"].cast<uint64_t>();
  info.last_sequence = facts["last_sequence"].cast<uint64_t>();
  info.step = facts["step"].cast<uint64_t>();
  info.key_limit = facts["key_limit"].cast<int64_t>();
  info.initializer = InitializerFromPython(facts["initializer"].cast<py::dict>());
  return info;
}

Result<FileList> OpenAll(const std::vector<std::string>& paths) {
  FileList files;
  for (const std::string& path : paths) {
    TSPS_ASSIGN_OR_RETURN(auto file, ServingFile::Open(path));
    files.push_back(std::move(file));
  }
  return files;
}

// Runs `write` without the GIL, with a progress that calls a Python function. An exception of the
// function ends the writing and is raised.
void WriteWithProgress(const py::function& progress,
                       const std::function<Status(const ServingProgress&)>& write) {
  std::exception_ptr raised;
  const ServingProgress report = [&](uint64_t keys) -> Status {
    const py::gil_scoped_acquire acquire;
    try {
      progress(keys);
      return Status();
    } catch (const py::error_already_set&) {
      raised = std::current_exception();
      return Error(Code::kAborted, "stopped");
    }
  };
  const Status status = WithoutGil([&] { return write(report); });
  if (raised != nullptr) std::rethrow_exception(raised);
  ThrowIfError(status);
}

// Rows for a serving file, which is written when all are added.
class PyServingRows {
 public:
  PyServingRows(const std::string& rows, size_t dim, uint64_t hash_seed, uint64_t most_keys,
                const std::string& folder)
      : dim_(dim),
        sorter_(ValueOrThrow(RowCodeFromName(rows)), dim, hash_seed, most_keys, folder) {}

  void Add(const KeyArray& keys, const FloatArray& rows) {
    const size_t n = KeyCount(keys);
    CheckRows(rows, n, static_cast<int64_t>(dim_), "rows");
    ThrowIfError(WithoutGil([&]() -> Status {
      for (size_t i = 0; i < n; ++i) {
        TSPS_RETURN_IF_ERROR(sorter_.Add(keys.data()[i], rows.data() + i * dim_));
      }
      return Status();
    }));
  }

  void Erase(const KeyArray& keys) {
    const size_t n = KeyCount(keys);
    ThrowIfError(WithoutGil([&]() -> Status {
      for (size_t i = 0; i < n; ++i) TSPS_RETURN_IF_ERROR(sorter_.Erase(keys.data()[i]));
      return Status();
    }));
  }

  // Adds the next rows of a scan, about at_most of them. Returns their number, 0 at the end.
  size_t AddScan(PyScan& scan, size_t at_most) {
    const Plane& embedding = scan.Planes().embedding();
    if (embedding.row_bytes != dim_ * ElementBytes(embedding.type)) {
      Throw(Error(Code::kInvalidArgument, "the scan has rows of another width than ", dim_));
    }
    constexpr size_t kRows = 1024;  // few enough to stay in a cache
    return ValueOrThrow(WithoutGil([&]() -> Result<size_t> {
      std::vector<int64_t> keys(kRows);
      std::vector<char> stored(kRows * embedding.row_bytes);
      std::vector<float> row(dim_);
      char* planes[kMaxPlanes] = {stored.data()};
      size_t done = 0;
      while (done < at_most) {
        TSPS_ASSIGN_OR_RETURN(const size_t n, scan.NextStored(kRows, keys.data(), planes));
        if (n == 0) break;
        for (size_t i = 0; i < n; ++i) {
          WidenRow(embedding.type, &stored[i * embedding.row_bytes], dim_, row.data());
          TSPS_RETURN_IF_ERROR(sorter_.Add(keys[i], row.data()));
        }
        done += n;
      }
      return done;
    }));
  }

  uint64_t Count() const { return sorter_.most_keys(); }

  void WriteBase(const std::string& path, const py::dict& facts, const py::function& progress) {
    const ServingInfo info = InfoFromPython(facts);
    WriteWithProgress(progress, [&](const ServingProgress& report) {
      return tsps::WriteBase(path, info, sorter_, report);
    });
  }

  void WriteLayer(const std::string& path, const py::dict& facts,
                  const std::vector<std::string>& older, const py::function& progress) {
    const ServingInfo info = InfoFromPython(facts);
    WriteWithProgress(progress, [&](const ServingProgress& report) -> Status {
      TSPS_ASSIGN_OR_RETURN(const FileList layers, OpenAll(older));
      return tsps::WriteLayer(path, info, sorter_, layers, report);
    });
  }

 private:
  const size_t dim_;
  EntrySorter sorter_;
};

// Merges adjacent files of a version, newest first, to one. `older`: the layers under them; they
// are not used if the last file is a base.
void MergeFiles(const std::vector<std::string>& paths, const std::vector<std::string>& older,
                const std::string& path, const py::function& progress) {
  WriteWithProgress(progress, [&](const ServingProgress& report) -> Status {
    TSPS_ASSIGN_OR_RETURN(const FileList files, OpenAll(paths));
    TSPS_ASSIGN_OR_RETURN(const FileList under, OpenAll(older));
    if (files.empty()) return Error(Code::kInvalidArgument, "there are no files to merge");
    TSPS_ASSIGN_OR_RETURN(const auto merge, LayerMerge::Of(files));
    ServingInfo info = ServingInfo::Of(*files.front());
    info.first_sequence = files.back()->header().first_sequence;
    return files.back()->header().is_layer == 0
               ? tsps::WriteBase(path, info, *merge, report)
               : tsps::WriteLayer(path, info, *merge, under, report);
  });
}

// The keys of a table that have rows, in parts.
class PyServingKeys {
 public:
  explicit PyServingKeys(const FileList& files)
      : merge_(ValueOrThrow(WithoutGil([&] { return LayerMerge::Of(files); }))) {}

  // Returns the next keys, about n. None at the end.
  KeyArray Next(size_t n) {
    std::vector<int64_t> keys;
    ThrowIfError(WithoutGil([&]() -> Status {
      for (ServingEntry entry; keys.size() < n;) {
        TSPS_ASSIGN_OR_RETURN(const bool more, merge_->Next(&entry));
        if (!more) break;
        if (entry.row != nullptr) keys.push_back(entry.key);
      }
      return Status();
    }));
    return KeyArray(static_cast<py::ssize_t>(keys.size()), keys.data());
  }

 private:
  const std::unique_ptr<LayerMerge> merge_;
};

// Writes a layer that changes the rows of a version into those of a base. Returns the number of its
// keys; if it is 0, no file is written.
uint64_t WriteDifference(const std::string& base, const std::vector<std::string>& version,
                         const std::string& path, uint64_t sequence, const py::function& progress) {
  uint64_t keys = 0;
  WriteWithProgress(progress, [&](const ServingProgress& report) -> Status {
    TSPS_ASSIGN_OR_RETURN(const auto file, ServingFile::Open(base));
    TSPS_ASSIGN_OR_RETURN(FileList files, OpenAll(version));
    TSPS_ASSIGN_OR_RETURN(const auto difference, LayerDifference::Of(file, files));
    keys = difference->most_keys();
    if (keys == 0) return Status();
    ServingInfo info = ServingInfo::Of(*file);
    info.first_sequence = info.last_sequence = sequence;
    files.pop_back();  // the base
    return tsps::WriteLayer(path, info, *difference, files, report);
  });
  return keys;
}

class PyServingTable {
 public:
  PyServingTable(const std::string& path, ServingFiles& files, bool verify, int threads)
      : table_(ValueOrThrow(WithoutGil([&] { return ServingTable::Open(path, files, verify); }))),
        executor_(std::make_unique<EigenExecutor>(threads)) {}

  FloatArray Lookup(const KeyArray& keys) const {
    const size_t n = KeyCount(keys);
    FloatArray rows = NewRows(n, static_cast<int64_t>(table_->dim()));
    float* const out = rows.mutable_data();
    ThrowIfError(WithoutGil([&] { return table_->Lookup(keys.data(), n, out, *executor_); }));
    return rows;
  }
  py::array_t<bool> Contains(const KeyArray& keys) const {
    const size_t n = KeyCount(keys);
    py::array_t<bool> present(static_cast<py::ssize_t>(n));
    bool* const out = present.mutable_data();
    ThrowIfError(WithoutGil([&] { return table_->Contains(keys.data(), n, out); }));
    return present;
  }
  std::unique_ptr<PyServingKeys> Keys() const {
    return std::make_unique<PyServingKeys>(table_->files());
  }
  uint64_t Step() const { return table_->step(); }
  // Returns a dict for each file, newest first.
  py::list Files() const {
    py::list files;
    for (const auto& file : table_->files()) files.append(ToPython(*file));
    return files;
  }
  void Verify() const {
    ThrowIfError(WithoutGil([&] { return table_->Verify(); }));
  }

 private:
  const std::shared_ptr<const ServingTable> table_;
  const std::unique_ptr<EigenExecutor> executor_;
};

py::dict FileInfo(const std::string& path) {
  return ToPython(*ValueOrThrow(WithoutGil([&] { return ServingFile::Open(path); })));
}

// Returns rows as a file with this code would store them.
FloatArray CodedRows(const std::string& rows_name, const FloatArray& rows) {
  const RowCode code = ValueOrThrow(RowCodeFromName(rows_name));
  if (rows.ndim() != 2) Throw(Error(Code::kInvalidArgument, "rows must be float32[n, dim]"));
  const auto n = static_cast<size_t>(rows.shape(0)), dim = static_cast<size_t>(rows.shape(1));
  FloatArray stored = NewRows(n, rows.shape(1));
  std::vector<char> coded(CodedBytes(code, dim));
  for (size_t i = 0; i < n; ++i) {
    ThrowIfError(EncodeRow(code, rows.data() + i * dim, dim, coded.data()));
    DecodeRow(code, coded.data(), dim, stored.mutable_data() + i * dim);
  }
  return stored;
}

bool VerifiesAtOpenOrThrow() { return ValueOrThrow(VerifiesAtOpen()); }

void VerifyFile(const std::string& path) {
  ThrowIfError(WithoutGil([&]() -> Status {
    TSPS_ASSIGN_OR_RETURN(const auto file, ServingFile::Open(path));
    return file->Verify();
  }));
}

std::string ManifestText(const std::string& table, uint64_t step,
                         const std::vector<std::tuple<std::string, uint64_t, uint32_t>>& files) {
  TableManifest manifest{table, step, {}};
  for (const auto& [path, bytes, crc] : files) manifest.files.push_back({path, bytes, crc});
  return EncodeManifest(manifest);
}

}  // namespace

void BindServing(py::module_& module) {
  py::class_<ServingFiles, std::shared_ptr<ServingFiles>>(module, "ServingFiles").def(py::init<>());
  py::class_<PyServingTable>(module, "ServingTable")
      .def(py::init<const std::string&, ServingFiles&, bool, int>(), py::arg("path"),
           py::arg("files"), py::kw_only(), py::arg("verify"), py::arg("threads"))
      .def("lookup", &PyServingTable::Lookup, py::arg("keys").noconvert())
      .def("contains", &PyServingTable::Contains, py::arg("keys").noconvert())
      .def("keys", &PyServingTable::Keys)
      .def("step", &PyServingTable::Step)
      .def("files", &PyServingTable::Files)
      .def("verify", &PyServingTable::Verify);
  py::class_<PyServingKeys>(module, "ServingKeys").def("next", &PyServingKeys::Next, py::arg("n"));
  py::class_<PyServingRows>(module, "ServingRows")
      .def(py::init<const std::string&, size_t, uint64_t, uint64_t, const std::string&>(),
           py::kw_only(), py::arg("rows"), py::arg("dim"), py::arg("hash_seed"),
           py::arg("most_keys"), py::arg("folder"))
      .def("add", &PyServingRows::Add, py::arg("keys").noconvert(), py::arg("rows").noconvert())
      .def("add_scan", &PyServingRows::AddScan, py::arg("scan"), py::arg("at_most"))
      .def("erase", &PyServingRows::Erase, py::arg("keys").noconvert())
      .def("__len__", &PyServingRows::Count)
      .def("write_base", &PyServingRows::WriteBase, py::arg("path"), py::arg("facts"),
           py::arg("progress"))
      .def("write_layer", &PyServingRows::WriteLayer, py::arg("path"), py::arg("facts"),
           py::arg("older"), py::arg("progress"));
  module.def("merge_serving_files", &MergeFiles, py::arg("paths"), py::arg("older"),
             py::arg("path"), py::arg("progress"));
  module.def("write_serving_difference", &WriteDifference, py::arg("base"), py::arg("version"),
             py::arg("path"), py::arg("sequence"), py::arg("progress"));
  module.def("serving_file_info", &FileInfo, py::arg("path"));
  module.def("coded_rows", &CodedRows, py::arg("rows_name"), py::arg("rows").noconvert());
  module.def("verifies_at_open", &VerifiesAtOpenOrThrow);
  module.def("verify_serving_file", &VerifyFile, py::arg("path"));
  module.def("serving_manifest", &ManifestText, py::arg("table"), py::arg("step"),
             py::arg("files"));
}

}  // namespace tsps
