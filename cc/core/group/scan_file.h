// ScanFile: the file in which a scan (scan.h) and the writer communicate, and before-images of
// rows.
//
//   <group>/.scan-<place>        a lock, which the scan in this place holds
//   <group>/.scan-<place>.<id>   the file of one scan, which removes it when it ends:
//
//     ScanHeader, ScanTable[n_tables]; for each table one bit per row, in words
//
//   <group>/.scan-<place>.images the writer's file, for the scan in this place:
//
//     records: a ScanRecord, uint32 row[n] and the images, all padded to 64 bytes. The file is kept
//     for the next scan for a while, because new pages are slow
//
// The scan creates its file and announces it: it stores the id in LiveState.scans. From then on,
// before the writer writes to rows that have no bit, it puts images of them into the images file
// and then sets their bits. To end a scan, remove its id: rows that are written from then on get no
// image.
#ifndef TFSPS_CORE_GROUP_SCAN_FILE_H_
#define TFSPS_CORE_GROUP_SCAN_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"

namespace tsps {

constexpr uint64_t kScanMagic = 0x6e61637373707374ULL;  // "tspsscan", little-endian

// Why the writer has ended a scan.
enum class ScanEnd : uint32_t {
  kNot = 0,
  kLimit = 1,   // the images would exceed the scan's limit
  kNoRoom = 2,  // the file system has no space for the images
  kPlanes = 3,  // a table was bound to another optimizer
};

struct ScanHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;
  uint64_t id;
  uint64_t limit;  // bytes of records
  uint32_t n_tables;
  std::atomic<uint32_t> ended;  // ScanEnd
  std::atomic<uint64_t> end;    // the end of the complete records
  // Once the writer has seen the scan: 1 + the epoch of the state that its first images belong to.
  std::atomic<uint64_t> seen;
  std::atomic<uint64_t> complete;  // the same, once the first mutation's images are complete
};
static_assert(sizeof(ScanHeader) == 64, "shared between builds of one layout");

struct ScanTable {
  uint64_t removed;  // number of earlier tables of the place
  uint64_t rows;     // rows [0, rows) have a bit
  uint32_t place;
  uint32_t planes;               // generation of its list
  std::atomic<uint64_t> passed;  // rows below this need no image any more
  uint64_t wanted;               // planes of the images, as bits of positions in the list
  std::atomic<uint64_t> end;     // rows from this on need no image; initially `rows`
  uint64_t reserved[2];
};
static_assert(sizeof(ScanTable) == 64, "shared between builds of one layout");

constexpr uint32_t kScanImages = 0;  // images of rows
// The record has RecordMove[n] in place of images: entries that leave the index of the table's
// records on disk. The row numbers are 0.
constexpr uint32_t kScanMoves = 1;
constexpr uint32_t kScanMoveBytes = 16;

struct ScanRecord {
  uint64_t n;
  uint64_t bytes;      // of the whole record, padding included
  uint32_t table;      // the table's number in the scan
  uint32_t row_bytes;  // of a row in the wanted planes together
  uint32_t kind;       // kScanImages, or kScanMoves
  uint32_t zero;
  uint64_t reserved[4];
};
static_assert(sizeof(ScanRecord) == 64, "shared between builds of one layout");

constexpr size_t ScanAligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t ScanRecordBytes(size_t n, size_t row_bytes) {
  return sizeof(ScanRecord) + ScanAligned(n * sizeof(uint32_t)) + ScanAligned(n * row_bytes);
}
inline uint32_t* ScanRows(ScanRecord* record) { return reinterpret_cast<uint32_t*>(record + 1); }
inline char* ScanImages(ScanRecord* record) {
  return reinterpret_cast<char*>(record + 1) + ScanAligned(record->n * sizeof(uint32_t));
}

std::string ScanLockPath(const std::string& group, size_t place);
std::string ScanPath(const std::string& group, size_t place, uint64_t id);
std::string ScanImagesPath(const std::string& group, size_t place);

class ScanFile {
 public:
  // The part of a table that a scan reads.
  struct Wanted {
    size_t place;
    uint64_t removed;
    uint32_t planes;
    uint64_t rows;
    uint64_t wanted;  // planes
  };
  // Creates the file of a scan.
  static Result<std::unique_ptr<ScanFile>> Create(const std::string& path, uint64_t id,
                                                  uint64_t limit,
                                                  const std::vector<Wanted>& wanted);
  // Opens the file of a scan for the writer. DataLoss: it is not the file of a scan with this id.
  static Result<std::unique_ptr<ScanFile>> Open(const std::string& path, uint64_t id);

  ScanHeader& header() const { return *reinterpret_cast<ScanHeader*>(file_->data()); }
  MappedFile& file() const { return *file_; }
  // The tables when this process created or opened the file.
  const std::vector<Wanted>& tables() const { return tables_; }
  uint64_t limit() const { return limit_; }
  // --- `table` is the number of a table in the scan. ---
  // Returns whether the row has its bit.
  bool Saved(size_t table, uint32_t row) const {
    return (__atomic_load_n(&bits_[table][row >> 6], __ATOMIC_RELAXED) >> (row & 63) & 1) != 0;
  }
  // Calls visit(row) for those of the n rows from `first` on that have their bit.
  template <typename Visit>
  void ForEachSaved(size_t table, uint32_t first, size_t n, const Visit& visit) const {
    const uint64_t end = first + uint64_t{n};
    for (uint64_t row = first; row < end;) {
      const uint64_t begin = row & ~uint64_t{63};
      uint64_t word = __atomic_load_n(&bits_[table][row >> 6], __ATOMIC_RELAXED);
      word &= ~uint64_t{0} << (row & 63);
      for (; word != 0; word &= word - 1) {
        const uint64_t saved = begin + static_cast<uint64_t>(__builtin_ctzll(word));
        if (saved < end) visit(static_cast<uint32_t>(saved));
      }
      row = begin + 64;
    }
  }
  // Sets the bit of a row.
  void SetSaved(size_t table, uint32_t row) {
    uint64_t& word = bits_[table][row >> 6];
    __atomic_store_n(&word, word | uint64_t{1} << (row & 63), __ATOMIC_RELEASE);
  }
  std::atomic<uint64_t>& passed(size_t table) const { return Table(table).passed; }
  std::atomic<uint64_t>& end(size_t table) const { return Table(table).end; }

 private:
  ScanFile() = default;
  void Place(std::unique_ptr<MappedFile> file);
  ScanTable& Table(size_t table) const {
    return reinterpret_cast<ScanTable*>(file_->data() + sizeof(ScanHeader))[table];
  }

  std::unique_ptr<MappedFile> file_;
  std::vector<Wanted> tables_;
  std::vector<uint64_t*> bits_;
  uint64_t limit_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_SCAN_FILE_H_
