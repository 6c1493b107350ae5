// RecordFile: one file of a record log. Records are written once, in order, and never change.
//
//   0      header, 4,096 bytes: magic, version, file number, table uuid, bytes of a payload,
//          records per file, sequence number, kind
//   4096   record 0, record 1, ...; each append begins on a new page, which may leave a gap
//
//   record: int64 key | payload | uint32 seal | zeros up to a multiple of 8
//
// The seal is the checksum of place, key and payload, so a reader rejects a damaged record and also
// one that lies at another place than it was written for.
#ifndef TFSPS_CORE_TIER_RECORD_FILE_H_
#define TFSPS_CORE_TIER_RECORD_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// The layout of a table's records, the same in all files of its log.
struct RecordLayout {
  RecordLayout(std::string table_uuid, size_t payload_bytes, size_t file_bytes);

  std::string table_uuid;  // 32 hexadecimal digits
  size_t payload_bytes;
  size_t record_bytes;
  size_t records_per_file;
  // Where a payload has the 8 bytes of its row's use. kNoUse: rows are not evicted.
  static constexpr size_t kNoUse = SIZE_MAX;
  size_t use_offset = kNoUse;

  bool has_uses() const { return use_offset != kNoUse; }
  size_t offset(uint32_t slot) const;  // of a record in its file
  size_t file_end() const { return offset(static_cast<uint32_t>(records_per_file)); }
  // The most bytes of one write, and of a slice that compaction copies, unless a record is larger.
  size_t buffer_bytes() const { return BufferBytesFor(file_end()); }
  // An eighth of a file, from 128 KiB to 1 MiB.
  static size_t BufferBytesFor(size_t file_bytes);
  // Returns the first slot whose bytes begin on a page that no record before `slot` reaches.
  uint32_t SlotOnNewPage(uint32_t slot) const;

  // A place numbers a record among all files of the log.
  uint32_t place(uint32_t file, uint32_t slot) const;
  uint32_t file_of(uint32_t place) const;
  uint32_t slot_of(uint32_t place) const;
  uint32_t max_files() const;
  uint32_t max_places() const { return max_files() * static_cast<uint32_t>(records_per_file); }

  // Completes a record that has its payload: writes key and seal, and clears the padding.
  void Seal(uint32_t place, int64_t key, char* record) const;
  // Returns whether the seal matches place, key and payload.
  bool Sealed(uint32_t place, const char* record) const;
  static int64_t KeyOf(const char* record);
  static const char* PayloadOf(const char* record) { return record + sizeof(int64_t); }
  static char* PayloadOf(char* record) { return record + sizeof(int64_t); }
};

// Who has written the records of a file. Only the order of rows' files tells which state a record
// belongs to: copies are of records that had a place already.
enum class RecordKind : uint32_t { kRows = 0, kCopies = 1 };

// What tells a file from all others that the log ever had. Numbers are used again after a file was
// removed, sequence numbers never.
struct RecordFileId {
  uint32_t number;
  RecordKind kind;
  uint64_t sequence;
};

class RecordFile {
 public:
  // Creates a file with mode 0600. No file may have this number. Bypasses the page cache if the
  // file system supports that. `space`, if it is not empty, is a file of zeros in the folder, which
  // becomes the new one.
  static Result<std::shared_ptr<RecordFile>> Create(const std::string& folder,
                                                    const RecordFileId& id,
                                                    const RecordLayout& layout,
                                                    const std::string& space = "");
  // Tells a file from others that exist at the same time.
  struct Inode {
    dev_t device = 0;
    ino_t number = 0;
  };
  // Opens a file to read. DataLoss, naming the path: the file does not belong to this log.
  // `checked`, if it is not null, is a file that has passed this check: its header is not read
  // again, and the result has no id but its number.
  static Result<std::shared_ptr<RecordFile>> Open(const std::string& folder, uint32_t number,
                                                  const RecordLayout& layout,
                                                  const Inode* checked = nullptr);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  static std::string PathOf(const std::string& folder, uint32_t number);

  // Read and write whole pages; the memory must begin on a page. A read past the end returns zeros.
  // Thread-safe.
  Status Read(size_t offset, size_t bytes, char* to) const;
  Status Write(size_t offset, size_t bytes, const char* from);

  const std::string& path() const { return path_; }
  const RecordFileId& id() const { return id_; }
  const Inode& inode() const { return inode_; }
  // Removes the name of a file. Processes that have the file open can still read it.
  static Status Remove(const std::string& folder, uint32_t number);
  Result<uint64_t> Bytes() const;
  bool InPlace() const;  // false: the file was removed

 private:
  RecordFile(std::string path, int fd, const RecordFileId& id)
      : path_(std::move(path)), fd_(fd), id_(id) {}
  const std::string path_;
  const int fd_;
  RecordFileId id_;
  Inode inode_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_FILE_H_
