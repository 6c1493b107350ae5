#include "core/tier/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/limits.h"
#include "core/tier/disk_totals.h"
#include "core/tier/page_buffer.h"

namespace tsps {
namespace {

constexpr char kMagic[8] = {'t', 's', 'p', 's', 't', 'i', 'e', 'r'};
constexpr uint32_t kVersion = 2;
constexpr size_t kHeaderBytes = kPageBytes;
constexpr size_t kLeastBuffer = size_t{128} << 10;
constexpr size_t kMostBuffer = size_t{1} << 20;
// Rows and copies may be written at the same time.
constexpr char kUnnamedRows[] = "/.records", kUnnamedCopies[] = "/.copies";
constexpr int kReadAttempts = 3;  // before an error of the disk is reported

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t number;
  char table_uuid[32];
  uint64_t payload_bytes;
  uint64_t records_per_file;
  uint64_t sequence;
  uint32_t kind;
  uint32_t crc;  // of the bytes before
};
static_assert(sizeof(Header) == 80);

size_t Rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

Header HeaderOf(const RecordFileId& id, const RecordLayout& layout) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.number = id.number;
  header.sequence = id.sequence;
  header.kind = static_cast<uint32_t>(id.kind);
  layout.table_uuid.copy(header.table_uuid, sizeof(header.table_uuid));
  header.payload_bytes = layout.payload_bytes;
  header.records_per_file = layout.records_per_file;
  header.crc = HeaderCrc(header);
  return header;
}

Status CheckHeader(const Header& header, uint32_t number, const RecordLayout& layout,
                   const std::string& path) {
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Error(Code::kDataLoss, path,
                 " is not a record file of a tiered table: it does not begin with the magic bytes "
                 "of one. The table cannot be opened. Restore the newest checkpoint");
  }
  if (header.version != kVersion) {
    return OtherFormat(path, "record log version " + std::to_string(header.version),
                       "version " + std::to_string(kVersion));
  }
  if (header.crc != HeaderCrc(header)) {
    return Damaged(path, "the checksum of its header does not match");
  }
  const Header expected =
      HeaderOf({number, static_cast<RecordKind>(header.kind), header.sequence}, layout);
  if (std::memcmp(header.table_uuid, expected.table_uuid, sizeof(expected.table_uuid)) != 0) {
    return Error(Code::kDataLoss, path, " belongs to the table with uuid ",
                 std::string(header.table_uuid, sizeof(header.table_uuid)),
                 ", not to the table with uuid ", layout.table_uuid,
                 ". Nothing was read from it. Give each table its own storage folder");
  }
  if (std::memcmp(&header, &expected, sizeof(header)) != 0 ||
      header.kind > static_cast<uint32_t>(RecordKind::kCopies) || header.sequence == 0) {
    return Damaged(path, "its header describes file ", header.number, " with payloads of ",
                   header.payload_bytes, " bytes, of kind ", header.kind,
                   " and with sequence number ", header.sequence, ". Expected: file ", number,
                   " with payloads of ", layout.payload_bytes, " bytes");
  }
  return {};
}

// Some file systems refuse O_DIRECT.
int OpenPastCache(const std::string& path, int flags) {
  flags |= O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = open(path.c_str(), flags | O_DIRECT, 0600);
  if (fd >= 0 || errno != EINVAL) return fd;
  return open(path.c_str(), flags, 0600);
}

void CountError() {
  const int error = errno;
  DiskTotals::OfProcess().errors.fetch_add(1, std::memory_order_relaxed);
  errno = error;
}

}  // namespace

RecordLayout::RecordLayout(std::string uuid, size_t payload, size_t file_bytes)
    : table_uuid(std::move(uuid)),
      payload_bytes(payload),
      record_bytes(Rounded(sizeof(int64_t) + payload + sizeof(uint32_t), 8)),
      records_per_file(std::max<size_t>(1, (file_bytes - kHeaderBytes) / record_bytes)) {}

size_t RecordLayout::offset(uint32_t slot) const { return kHeaderBytes + slot * record_bytes; }

size_t RecordLayout::BufferBytesFor(size_t file_bytes) {
  return std::clamp(file_bytes / 8, kLeastBuffer, kMostBuffer);
}

uint32_t RecordLayout::SlotOnNewPage(uint32_t slot) const {
  const size_t page = Rounded(offset(slot), kPageBytes) - kHeaderBytes;
  return static_cast<uint32_t>((page + record_bytes - 1) / record_bytes);
}

uint32_t RecordLayout::place(uint32_t file, uint32_t slot) const {
  return file * static_cast<uint32_t>(records_per_file) + slot;
}

uint32_t RecordLayout::file_of(uint32_t place) const {
  return place / static_cast<uint32_t>(records_per_file);
}

uint32_t RecordLayout::slot_of(uint32_t place) const {
  return place % static_cast<uint32_t>(records_per_file);
}

// The two largest numbers are not places: kNoRecord and kRemovedRecord.
uint32_t RecordLayout::max_files() const {
  return static_cast<uint32_t>((std::numeric_limits<uint32_t>::max() - 1) / records_per_file);
}

void RecordLayout::Seal(uint32_t place, int64_t key, char* record) const {
  std::memcpy(record, &key, sizeof(key));
  char* end = record + sizeof(key) + payload_bytes;
  const uint32_t seal = Crc32c(place, record, sizeof(key) + payload_bytes);
  std::memcpy(end, &seal, sizeof(seal));
  std::memset(end + sizeof(seal), 0, record_bytes - sizeof(key) - payload_bytes - sizeof(seal));
}

bool RecordLayout::Sealed(uint32_t place, const char* record) const {
  const size_t bytes = sizeof(int64_t) + payload_bytes;
  uint32_t seal;
  std::memcpy(&seal, record + bytes, sizeof(seal));
  return seal == Crc32c(place, record, bytes);
}

int64_t RecordLayout::KeyOf(const char* record) {
  int64_t key;
  std::memcpy(&key, record, sizeof(key));
  return key;
}

std::string RecordFile::PathOf(const std::string& folder, uint32_t number) {
  return folder + "/records." + std::to_string(number);
}

Result<std::shared_ptr<RecordFile>> RecordFile::Create(const std::string& folder,
                                                       const RecordFileId& id,
                                                       const RecordLayout& layout,
                                                       const std::string& space) {
  const std::string path = PathOf(folder, id.number);
  // The file gets its name after its header is complete. A leftover of a killed writer is
  // overwritten.
  const std::string unnamed =
      folder + (id.kind == RecordKind::kRows ? kUnnamedRows : kUnnamedCopies);
  const bool spaced = !space.empty() && rename(space.c_str(), unnamed.c_str()) == 0;
  const int flags = O_RDWR | O_CREAT | (spaced ? 0 : O_TRUNC);
  const int fd = TSPS_FAULT_FAILS("tier_create") ? -1 : OpenPastCache(unnamed, flags);
  if (fd < 0) return ErrnoError("cannot create", unnamed);
  std::shared_ptr<RecordFile> file(new RecordFile(path, fd, id));
  TSPS_ASSIGN_OR_RETURN(const PageBuffer page, PageBuffer::Make(kHeaderBytes));
  std::memset(page.data(), 0, kHeaderBytes);
  const Header header = HeaderOf(id, layout);
  std::memcpy(page.data(), &header, sizeof(header));
  TSPS_RETURN_IF_ERROR(file->Write(0, kHeaderBytes, page.data()));
  TSPS_FAULT_POINT("tier_file_written");
  if (TSPS_FAULT_FAILS("tier_name") || rename(unnamed.c_str(), path.c_str()) != 0)
    return ErrnoError("cannot name", path);
  TSPS_FAULT_POINT("tier_file_created");
  return file;
}

Result<std::shared_ptr<RecordFile>> RecordFile::Open(const std::string& folder, uint32_t number,
                                                     const RecordLayout& layout,
                                                     const Inode* checked) {
  const std::string path = PathOf(folder, number);
  const int fd = OpenPastCache(path, O_RDONLY);
  if (fd < 0) return ErrnoError("cannot open", path);
  std::shared_ptr<RecordFile> file(new RecordFile(path, fd, {number, RecordKind::kRows, 0}));
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoError("cannot look at", path);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return Error(Code::kPermissionDenied, path,
                 " is not a regular file of this user. Nothing was read from it, because another "
                 "user could change it. Give the table a storage folder that only this user can "
                 "write");
  }
  file->inode_ = {info.st_dev, info.st_ino};
  if (checked != nullptr && checked->device == info.st_dev && checked->number == info.st_ino) {
    return file;
  }
  if (info.st_size < static_cast<off_t>(kHeaderBytes)) {
    return Damaged(path, "it has ", info.st_size, " bytes. A header has ", kHeaderBytes);
  }
  TSPS_ASSIGN_OR_RETURN(const PageBuffer page, PageBuffer::Make(kHeaderBytes));
  TSPS_RETURN_IF_ERROR(file->Read(0, kHeaderBytes, page.data()));
  Header header;
  std::memcpy(&header, page.data(), sizeof(header));
  TSPS_RETURN_IF_ERROR(CheckHeader(header, number, layout, path));
  file->id_ = {number, static_cast<RecordKind>(header.kind), header.sequence};
  return file;
}

RecordFile::~RecordFile() { close(fd_); }

Status RecordFile::Read(size_t offset, size_t bytes, char* to) const {
  size_t done = 0;
  int failures = 0;
  while (done < bytes) {
    const ssize_t got = TSPS_FAULT_FAILS("tier_read") ? -1
                                                      : pread(fd_, to + done, bytes - done,
                                                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) CountError();
    if (got < 0 && errno == EIO && ++failures < kReadAttempts) continue;
    if (got < 0) return ErrnoError("cannot read", path_);
    if (got == 0) break;
    done += static_cast<size_t>(got);
    // A direct read is short only at the end of the file.
    if (done % kPageBytes != 0) break;
  }
  std::memset(to + done, 0, bytes - done);
  return {};
}

Status RecordFile::Write(size_t offset, size_t bytes, const char* from) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t put = TSPS_FAULT_FAILS("tier_write") ? -1
                                                       : pwrite(fd_, from + done, bytes - done,
                                                                static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      CountError();
      return ErrnoError("cannot write", path_);
    }
    if (put == 0 || (done + static_cast<size_t>(put)) % kPageBytes != 0) {
      errno = ENOSPC;  // the disk had space for a part of a page only
      return ErrnoError("cannot write", path_);
    }
    done += static_cast<size_t>(put);
  }
  return {};
}

Result<uint64_t> RecordFile::Bytes() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return ErrnoError("cannot look at", path_);
  return static_cast<uint64_t>(info.st_size);
}

bool RecordFile::InPlace() const {
  struct stat info;
  return fstat(fd_, &info) == 0 && info.st_nlink > 0;
}

Status RecordFile::Remove(const std::string& folder, uint32_t number) {
  const std::string path = PathOf(folder, number);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("cannot remove", path);
  return {};
}

}  // namespace tsps
