#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/crc32.h"
#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/files/parameter_file.h"
#include "core/files/parameter_file_layout.h"
#include "core/os/direct_writer.h"
#include "core/os/file_io.h"
#include "core/os/partial_file.h"

namespace tsps {
namespace {

constexpr size_t kSummedBytes = 1 << 16;

}  // namespace

struct ParameterFileWriter::Impl {
  std::string path;
  std::unique_ptr<PartialFile> file;
  ParameterFileInfo info;
  bool counted = false;  // n_rows is the number of rows that were written
  ParameterFileGeometry geometry;
  std::vector<size_t> row_bytes;  // for each plane
  std::string header;             // the first version of the header
  uint64_t written = 0;           // rows
  std::optional<DirectWriter> out;
  size_t summed = 0;  // number of bytes in `out` that are in the checksums
  uint32_t block_crc = 0;
  ParameterFileChecksums checksums;
  Status failure;  // the first failure, after which the file cannot be completed

  void Put(const void* data, size_t n) { std::memcpy(out->Add(n), data, n); }

  // Adds new bytes to the checksums, while they are in a cache.
  void Sum() {
    const char* const data = out->data() + summed;
    const size_t n = out->size() - summed;
    block_crc = Crc32c(block_crc, data, n);
    checksums.file = Crc32(checksums.file, data, n);
    summed = out->size();
  }

  Status PutRecord(int64_t key, const void* const* values, size_t index) {
    char* to = out->Add(geometry.record_bytes);
    char* const end = to + geometry.record_bytes;
    std::memcpy(to, &key, sizeof(key));
    to += sizeof(key);
    for (size_t p = 0; p < row_bytes.size(); to += row_bytes[p++]) {
      std::memcpy(to, static_cast<const char*>(values[p]) + index * row_bytes[p], row_bytes[p]);
    }
    std::memset(to, 0, static_cast<size_t>(end - to));
    ++written;
    if (written % kRowsPerBlock == 0 || (!counted && written == info.n_rows)) EndBlock();
    if (out->size() - summed >= kSummedBytes) Sum();
    return out->full() ? Write() : Status();
  }

  void EndBlock() {
    Sum();
    checksums.blocks = Crc32(checksums.blocks, &block_crc, sizeof(block_crc));
    const uint32_t trailer[2] = {block_crc, 0};
    static_assert(sizeof(trailer) == kBlockTrailerBytes);
    Put(trailer, sizeof(trailer));
    Sum();
    block_crc = 0;
  }

  Status Write() {
    Sum();
    TSPS_RETURN_IF_ERROR(out->Write());
    summed = out->size();
    return Status();
  }

  Status AppendRows(const int64_t* keys, const void* const* values, size_t n) {
    for (size_t i = 0; i < n; ++i) TSPS_RETURN_IF_ERROR(PutRecord(keys[i], values, i));
    return Status();
  }

  Status Complete() {
    if (counted && written % kRowsPerBlock != 0) EndBlock();
    Sum();
    TSPS_RETURN_IF_ERROR(out->Finish());
    if (counted) TSPS_RETURN_IF_ERROR(WriteHeader());
    TSPS_RETURN_IF_ERROR(CheckSize());
    // The file's bytes must be on disk before its name, and the name before success is reported.
    if (fsync(file->fd()) != 0) return ErrnoError("cannot fsync", file->name());
    TSPS_FAULT_POINT("parameter_file.synced");
    TSPS_RETURN_IF_ERROR(file->Publish());
    TSPS_FAULT_POINT("parameter_file.renamed");
    const std::string folder = FolderOf(path);
    const int folder_fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) return ErrnoError("cannot open", folder);
    // Some file systems do not support fsync of folders and return EINVAL; then nothing more can be
    // done.
    const bool synced = fsync(folder_fd) == 0 || errno == EINVAL;
    const Status status = synced ? Status() : ErrnoError("cannot fsync", folder);
    close(folder_fd);
    return status;
  }

  // The checksums are those of the data in memory. They do not show whether the file system lost
  // the end of the file.
  Status CheckSize() const {
    struct stat status;
    if (fstat(file->fd(), &status) != 0) return ErrnoError("cannot stat", file->name());
    if (static_cast<uint64_t>(status.st_size) == geometry.file_bytes) return Status();
    return Error(Code::kDataLoss, file->name(), " has ", status.st_size, " bytes, but ",
                 geometry.file_bytes, " were written. Check the file system and save again");
  }

  // Replaces the header of a counted file, which was written for no rows.
  Status WriteHeader() {
    info.n_rows = written;
    TSPS_ASSIGN_OR_RETURN(const std::string counted_header, EncodeHeader(info));
    TSPS_ASSIGN_OR_RETURN(geometry, GeometryOf(info));
    const uint32_t both = Crc32(0, header.data(), header.size()) ^
                          Crc32(0, counted_header.data(), counted_header.size());
    checksums.file =
        Crc32OfJoined(both, checksums.file, geometry.file_bytes - geometry.header_bytes);
    return WriteAt(file->fd(), file->name(), counted_header.data(), counted_header.size(), 0);
  }
};

ParameterFileWriter::ParameterFileWriter() : impl_(new Impl) {}
ParameterFileWriter::~ParameterFileWriter() = default;

Result<std::unique_ptr<ParameterFileWriter>> ParameterFileWriter::Create(
    const std::string& path, const ParameterFileInfo& wanted, bool counted) {
  ParameterFileInfo info = wanted;
  if (counted) info.n_rows = 0;
  TSPS_ASSIGN_OR_RETURN(std::string header, EncodeHeader(info));
  struct stat existing;
  if (lstat(path.c_str(), &existing) == 0) {
    if (S_ISLNK(existing.st_mode)) {
      return Error(Code::kPermissionDenied, "cannot write ", path,
                   ": it is a symbolic link, which is not followed");
    }
    if (!S_ISREG(existing.st_mode)) {
      return Error(Code::kFailedPrecondition, "cannot write ", path, ": it is not a regular file");
    }
  } else if (errno != ENOENT) {
    return ErrnoError("cannot write", path);
  }

  std::unique_ptr<ParameterFileWriter> writer(new ParameterFileWriter);
  Impl& impl = *writer->impl_;
  impl.path = path;
  impl.info = info;
  impl.counted = counted;
  for (const Plane& plane : PlanesOf(info)) impl.row_bytes.push_back(plane.row_bytes);
  TSPS_ASSIGN_OR_RETURN(impl.geometry, GeometryOf(info));
  TSPS_ASSIGN_OR_RETURN(impl.file, PartialFile::Create(path));
  impl.out.emplace(impl.file->fd(), impl.file->name(),
                   impl.geometry.record_bytes + kBlockTrailerBytes);
  impl.header = std::move(header);
  impl.Put(impl.header.data(), impl.header.size());
  impl.Sum();
  impl.block_crc = 0;
  return writer;
}

Status ParameterFileWriter::Append(const int64_t* keys, const void* const* values, size_t n) {
  if (!impl_->counted && n > impl_->info.n_rows - impl_->written) {
    return Error(Code::kInvalidArgument, "parameter file ", impl_->path, " was announced with ",
                 impl_->info.n_rows, " rows. Received: ", n, " rows after ", impl_->written);
  }
  if (impl_->failure.ok()) impl_->failure = impl_->AppendRows(keys, values, n);
  return impl_->failure;
}

Status ParameterFileWriter::Finish() {
  if (impl_->file->published()) {
    return Error(Code::kFailedPrecondition, "parameter file ", impl_->path, " is already finished");
  }
  if (!impl_->counted && impl_->written != impl_->info.n_rows) {
    return Error(Code::kFailedPrecondition, "parameter file ", impl_->path, " was announced with ",
                 impl_->info.n_rows, " rows. Received: ", impl_->written);
  }
  if (impl_->failure.ok()) impl_->failure = impl_->Complete();
  return impl_->failure;
}

const ParameterFileChecksums& ParameterFileWriter::checksums() const { return impl_->checksums; }

}  // namespace tsps
