// ServingFile: an immutable file with rows of a table, mapped read-only.
#ifndef TFSPS_CORE_SERVING_SERVING_FILE_H_
#define TFSPS_CORE_SERVING_SERVING_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/serving/row_code.h"
#include "core/serving/serving_layout.h"

namespace tsps {

// A key of a file, in the order of hashes.
struct ServingEntry {
  uint64_t hash = 0;
  int64_t key = 0;
  const char* row = nullptr;  // in the file's row code; null: the key is erased
};

// Thread-safe: nothing changes after Open. All processes that have the file open share its pages.
// The pages of a file that somebody truncates while it is mapped raise SIGBUS: files of a version
// never change, and are replaced by renaming others.
class ServingFile {
 public:
  // Opens a file and checks its header and length. Reads nothing else. The error says whether it is
  // missing, truncated, foreign, newer or damaged, and names the path.
  static Result<std::shared_ptr<const ServingFile>> Open(const std::string& path);
  ~ServingFile();
  ServingFile(const ServingFile&) = delete;
  ServingFile& operator=(const ServingFile&) = delete;

  const ServingHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  RowCode row_code() const { return static_cast<RowCode>(header_.row_code); }
  InitializerConfig initializer() const;
  CodeError error() const;

  // Checks the checksums of all blocks. DataLoss, naming the first damaged one. Advises the kernel
  // to read ahead.
  Status Verify() const;
  // Whether Verify has found all blocks intact.
  bool verified() const { return verified_.load(std::memory_order_relaxed); }

  // The sections. A damaged index may have row numbers that are not below header().n_rows.
  const Bucket* buckets() const { return reinterpret_cast<const Bucket*>(data_ + kServingPage); }
  const FilterBlock* filter() const { return BlocksAt(header_.filter_at); }
  const FilterBlock* cover() const { return BlocksAt(header_.cover_at); }
  const char* rows() const { return data_ + header_.rows_at; }

  // Returns the error for a key whose row the index places outside of the file.
  Status Astray(int64_t key) const;

  // Goes through the keys in the order of their hashes. The file must outlive it.
  class Cursor {
   public:
    explicit Cursor(const ServingFile& file);
    bool done() const { return bucket_ >= file_.header().homes; }
    // The current key. Not after done().
    const ServingEntry& entry() const { return entry_; }
    // Goes to the next key. DataLoss: the index is damaged.
    Status Next();

   private:
    const ServingFile& file_;
    uint64_t bucket_ = 0;  // the home of the current key
    uint64_t at_ = 0;      // the bucket that it is in
    unsigned place_ = 0;   // the place to look at next
    ServingEntry entry_;
    Status Find();

    friend class ServingFile;
  };
  // Returns a cursor at the first key.
  Result<Cursor> Begin() const;

 private:
  ServingFile(std::string path, const ServingHeader& header)
      : path_(std::move(path)), header_(header) {}
  const FilterBlock* BlocksAt(uint64_t at) const {
    return reinterpret_cast<const FilterBlock*>(data_ + at);
  }
  Status Map(int fd);

  const std::string path_;
  const ServingHeader header_;
  char* range_ = nullptr;  // an address range, which contains the mapping
  char* data_ = nullptr;
  mutable std::atomic<bool> verified_{false};
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SERVING_FILE_H_
