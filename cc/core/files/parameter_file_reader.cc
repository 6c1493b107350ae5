#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/crc32c.h"
#include "core/files/parameter_file.h"
#include "core/files/parameter_file_layout.h"
#include "core/os/file_io.h"

namespace tsps {
namespace {

constexpr size_t kPieceBytes =
    1 << 18;  // fits into the second-level cache for read, checksum and copy

// Reads exactly n bytes.
Status ReadAll(int fd, const std::string& path, uint64_t offset, char* data, size_t n) {
  TSPS_ASSIGN_OR_RETURN(const size_t n_read, ReadAt(fd, path, data, n, offset));
  if (n_read == n) return Status();
  return Error(Code::kDataLoss, "truncated parameter file ", path, ": it ends at byte ",
               offset + n_read, ", and ", n - n_read, " more bytes are expected");
}

}  // namespace

struct ParameterFileReader::Impl {
  std::string path;
  int fd = -1;
  ParameterFileInfo info;
  ParameterFileGeometry geometry;
  std::vector<size_t> row_bytes;  // for each plane

  ~Impl() {
    if (fd >= 0) close(fd);
  }
};

ParameterFileReader::ParameterFileReader() : impl_(new Impl) {}
ParameterFileReader::~ParameterFileReader() = default;

Result<std::unique_ptr<ParameterFileReader>> ParameterFileReader::Open(const std::string& path) {
  std::unique_ptr<ParameterFileReader> reader(new ParameterFileReader);
  Impl& impl = *reader->impl_;
  impl.path = path;
  // O_NONBLOCK: without it, opening a FIFO would wait for a writer.
  impl.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (impl.fd < 0) return ErrnoError("cannot open parameter file", path);
  struct stat file;
  if (fstat(impl.fd, &file) != 0) return ErrnoError("cannot stat", path);
  if (!S_ISREG(file.st_mode)) {
    return Error(Code::kFailedPrecondition, "cannot read ", path, ": it is not a regular file");
  }
  ParameterFileHeader header;
  const uint64_t bytes = static_cast<uint64_t>(file.st_size);
  if (bytes < sizeof(header)) {
    return Error(Code::kDataLoss, "truncated parameter file ", path, ": it has ", bytes,
                 " bytes, and the header alone needs ", sizeof(header));
  }
  TSPS_RETURN_IF_ERROR(ReadAll(impl.fd, path, 0, reinterpret_cast<char*>(&header), sizeof(header)));
  TSPS_RETURN_IF_ERROR(CheckHeader(header, path));
  if (bytes != header.file_bytes) {
    return Error(Code::kDataLoss, bytes < header.file_bytes ? "truncated" : "damaged",
                 " parameter file ", path, ": it has ", bytes, " bytes, expected ",
                 header.file_bytes);
  }
  std::vector<ParameterFilePlane> planes(PlaneEntries(header));
  TSPS_RETURN_IF_ERROR(ReadAll(impl.fd, path, sizeof(header),
                               reinterpret_cast<char*>(planes.data()),
                               planes.size() * sizeof(ParameterFilePlane)));
  TSPS_ASSIGN_OR_RETURN(impl.info, DecodeHeader(header, planes, path));
  TSPS_ASSIGN_OR_RETURN(impl.geometry, GeometryOf(impl.info, header.version));
  for (const Plane& plane : PlanesOf(impl.info)) impl.row_bytes.push_back(plane.row_bytes);
  return reader;
}

const ParameterFileInfo& ParameterFileReader::info() const { return impl_->info; }

size_t ParameterFileReader::n_blocks() const { return impl_->geometry.n_blocks; }

size_t ParameterFileReader::rows_in_block(size_t block) const {
  if (block >= n_blocks()) return 0;
  return std::min<uint64_t>(kRowsPerBlock, impl_->info.n_rows - block * kRowsPerBlock);
}

Status ParameterFileReader::CheckBlock(size_t block) const {
  if (block < n_blocks()) return Status();
  return Error(Code::kOutOfRange, "parameter file ", impl_->path, " has ", n_blocks(),
               " blocks. Received: ", block);
}

Result<uint32_t> ParameterFileReader::BlockChecksum(size_t block) const {
  TSPS_RETURN_IF_ERROR(CheckBlock(block));
  const size_t bytes = rows_in_block(block) * impl_->geometry.record_bytes;
  uint32_t crc = 0;
  TSPS_RETURN_IF_ERROR(ReadAll(impl_->fd, impl_->path, impl_->geometry.BlockOffset(block) + bytes,
                               reinterpret_cast<char*>(&crc), sizeof(crc)));
  return crc;
}

Status ParameterFileReader::ReadBlock(size_t block, int64_t* keys, void* const* values) const {
  TSPS_RETURN_IF_ERROR(CheckBlock(block));
  const size_t n = rows_in_block(block), record_bytes = impl_->geometry.record_bytes;
  const std::vector<size_t>& row_bytes = impl_->row_bytes;
  const size_t piece = std::max<size_t>(1, kPieceBytes / record_bytes);
  std::unique_ptr<char[]> buffer(new char[std::min(piece, n) * record_bytes]);
  uint64_t offset = impl_->geometry.BlockOffset(block);
  uint32_t crc = 0;
  for (size_t first = 0; first < n; first += piece) {
    const size_t count = std::min(piece, n - first), bytes = count * record_bytes;
    TSPS_RETURN_IF_ERROR(ReadAll(impl_->fd, impl_->path, offset, buffer.get(), bytes));
    offset += bytes;
    crc = Crc32c(crc, buffer.get(), bytes);
    for (size_t i = 0; i < count; ++i) {
      const char* field = buffer.get() + i * record_bytes;
      std::memcpy(&keys[first + i], field, sizeof(int64_t));
      field += sizeof(int64_t);
      for (size_t p = 0; p < row_bytes.size(); field += row_bytes[p++]) {
        if (values[p] == nullptr) continue;
        std::memcpy(static_cast<char*>(values[p]) + (first + i) * row_bytes[p], field,
                    row_bytes[p]);
      }
    }
  }
  uint32_t trailer[2];
  TSPS_RETURN_IF_ERROR(
      ReadAll(impl_->fd, impl_->path, offset, reinterpret_cast<char*>(trailer), sizeof(trailer)));
  if (trailer[0] != crc || trailer[1] != 0) {
    return Error(Code::kDataLoss, "damaged parameter file ", impl_->path, ": block ", block,
                 " (rows from ", block * kRowsPerBlock, ") has checksum ", crc, ", expected ",
                 trailer[0]);
  }
  return Status();
}

}  // namespace tsps
