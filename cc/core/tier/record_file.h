// RecordFile: one of the files of a record log. Its records are written once, in order, and never
// changed.
//
//   0      header, 4,096 bytes: magic, version, whose it is, its number, bytes of a record
//   4096   record 0, record 1, ... without gaps but those that begin appends on new pages
//
//   record: int64 key | payload | uint32 seal | zeros up to a multiple of 8
//
// The seal is the checksum of place, key and payload: what lies elsewhere than where it was written
// is refused like what is damaged.
#ifndef TFSPS_CORE_TIER_RECORD_FILE_H_
#define TFSPS_CORE_TIER_RECORD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// Of a table and of the files of its log, which are all alike.
struct RecordLayout {
  RecordLayout(std::string table_uuid, size_t payload_bytes, size_t file_bytes);

  std::string table_uuid;  // 32 hexadecimal digits
  size_t payload_bytes;
  size_t record_bytes;
  size_t records_per_file;

  size_t offset(uint32_t slot) const;  // in a file
  size_t file_end() const { return offset(static_cast<uint32_t>(records_per_file)); }
  // The first slot whose bytes begin on a page that no record before `slot` reaches.
  uint32_t SlotOnNewPage(uint32_t slot) const;

  // Where a record lies in all files of the log.
  uint32_t place(uint32_t file, uint32_t slot) const;
  uint32_t file_of(uint32_t place) const;
  uint32_t slot_of(uint32_t place) const;
  uint32_t max_files() const;
  uint32_t max_places() const { return max_files() * static_cast<uint32_t>(records_per_file); }

  // Fills a record whose payload is there.
  void Seal(uint32_t place, int64_t key, char* record) const;
  bool Sealed(uint32_t place, const char* record) const;
  static int64_t KeyOf(const char* record);
  static const char* PayloadOf(const char* record) { return record + sizeof(int64_t); }
  static char* PayloadOf(char* record) { return record + sizeof(int64_t); }
};

class RecordFile {
 public:
  // 0600; no file has this number. Without the page cache where the file system can.
  static Result<std::shared_ptr<RecordFile>> Create(const std::string& folder, uint32_t number,
                                                    const RecordLayout& layout);
  // DataLoss, naming the path, for what is no file of this log.
  static Result<std::shared_ptr<RecordFile>> Open(const std::string& folder, uint32_t number,
                                                  const RecordLayout& layout);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  static std::string PathOf(const std::string& folder, uint32_t number);

  // Whole pages, from and to memory that begins on one. Thread-safe. Past the end is zeros.
  Status Read(size_t offset, size_t bytes, char* to) const;
  Status Write(size_t offset, size_t bytes, const char* from);

  const std::string& path() const { return path_; }
  // Removes its name: who has it open can still read it.
  Status Remove();
  bool InPlace() const;  // false: it was removed

 private:
  RecordFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_FILE_H_
