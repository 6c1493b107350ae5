#include "core/serving/serving_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/hash.h"
#include "core/os/file_io.h"
#include "core/table/row_type.h"

namespace tsps {
namespace {

constexpr uint64_t kMaxServingDim = 65536;

Status CheckCounts(const std::string& path, const ServingHeader& header) {
  const bool plausible =
      header.dim >= 1 && header.dim <= kMaxServingDim && IsRowCode(header.row_code) &&
      IsRowType(static_cast<PlaneType>(header.row_type)) && header.is_layer <= 1 &&
      header.key_limit >= 0 && header.n_keys < kMaxServingRows && header.n_rows <= header.n_keys &&
      header.homes >= 1 && header.homes < kMaxServingRows &&
      header.n_buckets == BucketsFor(header.homes) && header.filter_blocks < kMaxServingRows &&
      header.cover_blocks < kMaxServingRows && header.reserved0 == 0 && header.reserved1 == 0 &&
      header.reserved2 == 0 &&
      header.row_bytes == CodedBytes(static_cast<RowCode>(header.row_code), header.dim) &&
      (header.is_layer == 1) == (header.filter_blocks > 0) &&
      (header.is_layer == 1 || (header.n_rows == header.n_keys && header.cover_blocks == 0)) &&
      header.first_sequence <= header.last_sequence;
  if (!plausible) return Damaged(path, "its header has values that no writer writes");
  const ServingSections sections = SectionsOf(header);
  if (header.filter_at != sections.filter.at || header.cover_at != sections.cover.at ||
      header.rows_at != sections.rows.at || header.crcs_at != sections.crcs.at ||
      header.file_bytes != sections.crcs.end) {
    return Damaged(path, "its header has offsets that do not fit its counts");
  }
  return ValidateInitializer({static_cast<InitializerKind>(header.initializer_kind),
                              header.initializer_a, header.initializer_b, 0, 0});
}

Status CheckHeader(const std::string& path, const ServingHeader& header, uint64_t bytes) {
  if (std::memcmp(header.magic, kServingMagic, sizeof(kServingMagic)) != 0) {
    return Error(Code::kDataLoss, path, " is not a serving file: it begins with other bytes");
  }
  if (header.version != kServingVersion) {
    return OtherFormat(path, std::to_string(header.version), std::to_string(kServingVersion));
  }
  if (header.header_bytes != sizeof(header) || header.crc != HeaderCrc(header)) {
    return Damaged(path, "the checksum of its header does not match");
  }
  TSPS_RETURN_IF_ERROR(CheckCounts(path, header));
  if (bytes != header.file_bytes) {
    return Error(Code::kDataLoss, path,
                 bytes < header.file_bytes ? " is truncated" : " is too long", ": it has ", bytes,
                 " bytes, and its header says ", header.file_bytes);
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<const ServingFile>> ServingFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError("cannot open", path);
  const auto opened = [&]() -> Result<std::shared_ptr<const ServingFile>> {
    struct stat info;
    if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", path);
    if (!S_ISREG(info.st_mode)) return Error(Code::kDataLoss, path, " is not a regular file");
    ServingHeader header;
    TSPS_ASSIGN_OR_RETURN(const size_t n, ReadAt(fd, path, &header, sizeof(header), 0));
    if (n != sizeof(header)) {
      return Error(Code::kDataLoss, path, " is truncated: it has ", n,
                   " bytes, less than a header");
    }
    TSPS_RETURN_IF_ERROR(CheckHeader(path, header, static_cast<uint64_t>(info.st_size)));
    std::shared_ptr<ServingFile> file(new ServingFile(path, header));
    TSPS_RETURN_IF_ERROR(file->Map(fd));
    return std::shared_ptr<const ServingFile>(std::move(file));
  }();
  close(fd);
  return opened;
}

Status ServingFile::Map(int fd) {
  // Huge pages must have addresses that are multiples of their size.
  const size_t range = static_cast<size_t>(header_.file_bytes + kServingPiece);
  void* const reserved =
      mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return ErrnoError("cannot map", path_);
  range_ = static_cast<char*>(reserved);
  const auto address = reinterpret_cast<uintptr_t>(range_);
  char* const aligned = range_ + (RoundUp(address, kServingPiece) - address);
  if (mmap(aligned, static_cast<size_t>(header_.file_bytes), PROT_READ, MAP_SHARED | MAP_FIXED, fd,
           0) == MAP_FAILED) {
    return ErrnoError("cannot map", path_);
  }
  data_ = aligned;
  return Status();
}

ServingFile::~ServingFile() {
  if (range_ != nullptr) munmap(range_, static_cast<size_t>(header_.file_bytes + kServingPiece));
}

InitializerConfig ServingFile::initializer() const {
  return {static_cast<InitializerKind>(header_.initializer_kind), header_.initializer_a,
          header_.initializer_b, header_.initializer_seed, header_.initializer_salt};
}

CodeError ServingFile::error() const {
  CodeError error;
  error.sum = header_.error_sum;
  error.max = header_.error_max;
  error.rows = header_.error_rows;
  error.over = header_.error_over;
  return error;
}

Status ServingFile::Verify() const {
  const ServingSections sections = SectionsOf(header_);
  const char* const crcs = data_ + sections.crcs.at;
  const uint64_t crc_bytes = sections.crcs.end - sections.crcs.at;
  if (BlockCrc(crcs, crc_bytes) != header_.crcs_crc) {
    return Damaged(path_, "the checksums of its blocks do not match the header");
  }
  madvise(data_, static_cast<size_t>(header_.file_bytes), MADV_SEQUENTIAL);
  uint64_t number = 0;
  Status status;
  for (const Section& section : {sections.index, sections.filter, sections.cover, sections.rows}) {
    for (uint64_t block = 0; block < section.blocks() && status.ok(); ++block, ++number) {
      const Section bytes = section.block(block);
      uint32_t expected;
      std::memcpy(&expected, crcs + number * sizeof(expected), sizeof(expected));
      if (BlockCrc(data_ + bytes.at, bytes.end - bytes.at) == expected) continue;
      status = Damaged(path_, "the checksum of bytes ", bytes.at, " to ", bytes.end,
                       " does not match. Copy the file again, or export the version again");
    }
  }
  madvise(data_, static_cast<size_t>(header_.file_bytes), MADV_NORMAL);
  if (status.ok()) verified_.store(true, std::memory_order_relaxed);
  return status;
}

Status ServingFile::Astray(int64_t key) const {
  return Damaged(path_, "its index places the row of key ", key,
                 " outside of the file. Copy the file again, or export the version again");
}

ServingFile::Cursor::Cursor(const ServingFile& file) : file_(file) {}

Result<ServingFile::Cursor> ServingFile::Begin() const {
  Cursor cursor(*this);
  TSPS_RETURN_IF_ERROR(cursor.Find());
  return cursor;
}

Status ServingFile::Cursor::Next() {
  const uint64_t before = entry_.hash;
  TSPS_RETURN_IF_ERROR(Find());
  if (!done() && entry_.hash <= before) {
    return Damaged(file_.path_, "its keys are not in the order of their hashes");
  }
  return Status();
}

// The keys of a home are in its own bucket first, and its guests in the following ones.
Status ServingFile::Cursor::Find() {
  const ServingHeader& header = file_.header_;
  for (; bucket_ < header.homes; at_ = ++bucket_) {
    const uint64_t last =
        std::min(bucket_ + file_.buckets()[bucket_].distance(), header.n_buckets - 1);
    for (; at_ <= last; ++at_, place_ = 0) {
      const Bucket& bucket = file_.buckets()[at_];
      while ((bucket.used() >> place_) != 0) {
        const unsigned place = place_++;
        if ((bucket.used() >> place & 1) == 0) continue;
        const uint64_t hash = HashKey(bucket.keys[place], header.hash_seed);
        if (PlaceOf(hash, header.homes) != bucket_) continue;  // a guest, or the host of one
        entry_ = {hash, bucket.keys[place], nullptr};
        if ((bucket.erased() >> place & 1) != 0) return Status();
        const unsigned rows_before = bucket.used() & ~bucket.erased() & ((1u << place) - 1);
        const uint64_t row =
            bucket.first_row() + static_cast<unsigned>(__builtin_popcount(rows_before));
        if (row >= header.n_rows) return file_.Astray(entry_.key);
        entry_.row = file_.rows() + row * header.row_bytes;
        return Status();
      }
    }
    place_ = 0;
  }
  return Status();
}

}  // namespace tsps
