// IndexWriter: makes the buckets of a serving file of keys in the order of their hashes, and says
// in which order their rows belong into the file.
#ifndef TFSPS_CORE_SERVING_INDEX_WRITER_H_
#define TFSPS_CORE_SERVING_INDEX_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/serving/section_writer.h"
#include "core/serving/serving_file.h"
#include "core/serving/serving_layout.h"

namespace tsps {

// Not thread-safe.
class IndexWriter {
 public:
  // `index` and `rows` are the sections to write to.
  IndexWriter(uint64_t homes, size_t row_bytes, SectionWriter* index, SectionWriter* rows)
      : homes_(homes), row_bytes_(row_bytes), index_(*index), rows_(*rows) {}

  // Adds the next key, and its row unless it is erased.
  Status Add(const ServingEntry& entry);
  // Writes all buckets. ResourceExhausted: a guest is too far from its home.
  Status Finish();

  uint64_t n_keys() const { return n_keys_; }
  uint64_t n_rows() const { return n_rows_; }

 private:
  // A key that did not fit into its home.
  struct Guest {
    uint64_t home;
    int64_t key;
    bool erased;
    std::string row;
  };
  // Puts a key into the current bucket, which has a free place.
  Status Put(int64_t key, const char* row);
  // Fills the current bucket with guests, and begins the next one.
  Status EndBucket();
  // The buckets that are not written yet, because a guest's distance may still change their word.
  Bucket& BucketAt(uint64_t number) { return recent_[static_cast<size_t>(number - written_)]; }

  const uint64_t homes_;
  const size_t row_bytes_;
  SectionWriter& index_;
  SectionWriter& rows_;
  uint64_t n_keys_ = 0, n_rows_ = 0;
  uint64_t written_ = 0;              // buckets
  uint64_t current_ = 0;              // the number of the current bucket
  unsigned used_ = 0, erased_ = 0;    // bits of its places
  uint64_t first_row_ = 0;            // of the current bucket
  int64_t keys_[Bucket::kKeys] = {};  // its keys
  std::deque<Bucket> recent_;         // the buckets before it that are not written
  std::deque<Guest> guests_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_INDEX_WRITER_H_
