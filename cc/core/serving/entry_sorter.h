// EntrySorter: sorts a table's rows by the hashes of their keys, for a serving file. Rows that
// exceed its memory are in a file without a name, which ends with the process.
#ifndef TFSPS_CORE_SERVING_ENTRY_SORTER_H_
#define TFSPS_CORE_SERVING_ENTRY_SORTER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/serving/entry_source.h"

namespace tsps {

// First add all entries, then read them. Needs at most 64 MiB of memory for up to 100 GB of rows.
// Not thread-safe.
class EntrySorter final : public EntrySource {
 public:
  // `most_keys` is a number of calls of Add and Erase that is not exceeded by much. `folder` is for
  // the file.
  EntrySorter(RowCode code, size_t dim, uint64_t hash_seed, uint64_t most_keys, std::string folder);
  ~EntrySorter() override;

  // Adds a key and its row, or an erased key. If a key is added several times, the last one counts.
  // InvalidArgument, naming the key: the code cannot represent the row.
  Status Add(int64_t key, const float* row);
  Status Erase(int64_t key);

  uint64_t most_keys() const override { return added_; }
  Result<bool> Next(ServingEntry* entry) override;
  CodeError error() const override { return error_; }

 private:
  // A record is the key, a byte that says whether there is a row, and the row in its code.
  static constexpr size_t kPrefix = sizeof(int64_t) + 1;

  // The entries of a range of hashes.
  struct Part {
    std::vector<char> buffer;
    std::vector<uint64_t> chunks;  // offsets in the file of full buffers
  };
  Status Append(int64_t key, const char* row);
  Status Spill(Part& part);
  // Reads the next part that has entries, and sorts them.
  Status Load();

  const RowCode code_;
  const size_t dim_;
  const size_t row_bytes_;
  const size_t record_bytes_;
  const uint64_t hash_seed_;
  const std::string folder_;
  size_t buffer_bytes_ = 0;  // of a part, a multiple of record_bytes_
  std::vector<Part> parts_;
  uint64_t added_ = 0;
  CodeError error_;
  std::vector<char> coded_;
  std::vector<float> decoded_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  // Reading.
  size_t next_part_ = 0;
  std::vector<char> records_;
  std::vector<std::pair<uint64_t, uint32_t>> order_;  // hashes and numbers of the records
  size_t next_ = 0;                                   // in order_
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_ENTRY_SORTER_H_
