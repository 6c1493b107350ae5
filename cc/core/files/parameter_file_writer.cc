#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/files/parameter_file.h"
#include "core/files/parameter_file_layout.h"
#include "core/os/partial_file.h"

namespace tsps {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

struct ParameterFileWriter::Impl {
  std::string path;
  std::unique_ptr<PartialFile> file;
  ParameterFileInfo info;
  bool counted = false;  // n_rows follows from what was written
  ParameterFileGeometry geometry;
  std::vector<size_t> row_bytes;  // of each plane
  uint64_t written = 0;           // rows
  uint32_t block_crc = 0;
  std::vector<char> buffer;

  Status Flush() {
    for (size_t done = 0; done < buffer.size();) {
      const ssize_t n = write(file->fd(), buffer.data() + done, buffer.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoError("cannot write", file->name());
      done += static_cast<size_t>(n);
    }
    buffer.clear();
    return Status();
  }

  void Put(const void* data, size_t n) {
    const char* p = static_cast<const char*>(data);
    buffer.insert(buffer.end(), p, p + n);
  }

  Status PutRecord(int64_t key, const void* const* values, size_t index) {
    const size_t begin = buffer.size();
    Put(&key, sizeof(key));
    for (size_t p = 0; p < row_bytes.size(); ++p) {
      Put(static_cast<const char*>(values[p]) + index * row_bytes[p], row_bytes[p]);
    }
    buffer.resize(begin + geometry.record_bytes, 0);
    block_crc = Crc32c(block_crc, buffer.data() + begin, geometry.record_bytes);
    ++written;
    if (written % kRowsPerBlock == 0 || (!counted && written == info.n_rows)) EndBlock();
    return buffer.size() >= kBufferBytes ? Flush() : Status();
  }

  void EndBlock() {
    const uint32_t trailer[2] = {block_crc, 0};
    static_assert(sizeof(trailer) == kBlockTrailerBytes);
    Put(trailer, sizeof(trailer));
    block_crc = 0;
  }

  // Of a counted file, whose header was that of no rows.
  Status WriteHeader() {
    info.n_rows = written;
    TSPS_ASSIGN_OR_RETURN(const std::string header, EncodeHeader(info));
    for (size_t done = 0; done < header.size();) {
      const ssize_t n =
          pwrite(file->fd(), header.data() + done, header.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoError("cannot write", file->name());
      done += static_cast<size_t>(n);
    }
    return Status();
  }
};

ParameterFileWriter::ParameterFileWriter() : impl_(new Impl) {}
ParameterFileWriter::~ParameterFileWriter() = default;

Result<std::unique_ptr<ParameterFileWriter>> ParameterFileWriter::Create(
    const std::string& path, const ParameterFileInfo& wanted, bool counted) {
  ParameterFileInfo info = wanted;
  if (counted) info.n_rows = 0;
  TSPS_ASSIGN_OR_RETURN(const std::string header, EncodeHeader(info));
  struct stat there;
  if (lstat(path.c_str(), &there) == 0) {
    if (S_ISLNK(there.st_mode)) {
      return Error(Code::kPermissionDenied, "cannot write ", path,
                   ": it is a symbolic link, which is not followed");
    }
    if (!S_ISREG(there.st_mode)) {
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
  impl.buffer.reserve(kBufferBytes + impl.geometry.record_bytes + kBlockTrailerBytes);
  impl.Put(header.data(), header.size());
  return writer;
}

Status ParameterFileWriter::Append(const int64_t* keys, const void* const* values, size_t n) {
  if (!impl_->counted && n > impl_->info.n_rows - impl_->written) {
    return Error(Code::kInvalidArgument, "parameter file ", impl_->path, " was announced with ",
                 impl_->info.n_rows, " rows. Received: ", n, " rows after ", impl_->written);
  }
  for (size_t i = 0; i < n; ++i) TSPS_RETURN_IF_ERROR(impl_->PutRecord(keys[i], values, i));
  return Status();
}

Status ParameterFileWriter::Finish() {
  if (impl_->file->published()) {
    return Error(Code::kFailedPrecondition, "parameter file ", impl_->path, " is already finished");
  }
  if (!impl_->counted && impl_->written != impl_->info.n_rows) {
    return Error(Code::kFailedPrecondition, "parameter file ", impl_->path, " was announced with ",
                 impl_->info.n_rows, " rows. Received: ", impl_->written);
  }
  if (impl_->counted && impl_->written % kRowsPerBlock != 0) impl_->EndBlock();
  TSPS_RETURN_IF_ERROR(impl_->Flush());
  if (impl_->counted) TSPS_RETURN_IF_ERROR(impl_->WriteHeader());
  // The file's bytes must be on disk before its name is, and the name before success is reported.
  if (fsync(impl_->file->fd()) != 0) return ErrnoError("cannot fsync", impl_->file->name());
  TSPS_FAULT_POINT("parameter_file.synced");
  TSPS_RETURN_IF_ERROR(impl_->file->Publish());
  TSPS_FAULT_POINT("parameter_file.renamed");
  const std::string folder = FolderOf(impl_->path);
  const int folder_fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0) return ErrnoError("cannot open", folder);
  // Some file systems have no fsync of folders and say EINVAL: then there is nothing more to do.
  const bool synced = fsync(folder_fd) == 0 || errno == EINVAL;
  const Status status = synced ? Status() : ErrnoError("cannot fsync", folder);
  close(folder_fd);
  return status;
}

}  // namespace tsps
