// RowGather: finds the rows of keys, including the initial rows of absent ones, and copies them to
// an output.
#ifndef TFSPS_CORE_GROUP_ROW_GATHER_H_
#define TFSPS_CORE_GROUP_ROW_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/executor.h"
#include "core/group/group.h"
#include "core/group/scan.h"

namespace tsps {

// The rows of keys of one table, for use inside of Group::Read(), which may run its callback
// several times. Not thread-safe.
class RowGather {
 public:
  // `keys` is int64[n] and must outlive this. Keys may repeat. `numbers`: keep the row numbers of
  // unique keys for TakeFound().
  RowGather(std::shared_ptr<const TableConfig> config, int table, const int64_t* keys, size_t n,
            bool numbers = false);

  // Finds the rows with parallel probes. Every attempt of a Read() calls this first. Only the first
  // attempt computes initial rows, as long as the same keys are absent.
  void Find(const ReadView& view, Executor& executor);
  // Finds and copies the rows with a scan, which needs no further attempt.
  Status Find(Scan& scan, Executor& executor);
  // Takes the rows of float32 from a function that writes rows of keys, float[n, dim].
  Status Find(const std::function<Status(const int64_t* keys, size_t n, float* rows)>& look_up);

  size_t n() const { return n_; }
  // Returns the state of the last attempt and the row numbers that it found, or none if they were
  // not kept. May be called once, after that attempt.
  RowNumberCache::Found TakeFound();
  // Returns why rows on disk could not be read in the last attempt, or OK.
  Status status() const { return status_; }

  // --- The rows of the last Find(). Use them in its attempt only: a writer may be changing them.
  // ---

  // Returns the address of each key's row, in the table or in this object. Rows that are not stored
  // as floats are converted to copies.
  const float* const* Floats(Executor& executor);
  // Sets out[i] to the row of keys[inverse[i]]; `out` is float[n, dim].
  void CopyRows(const int32_t* inverse, size_t n, float* out, Executor& executor) const;
  // Copies all rows in the order of the keys to `out`, float[n(), dim].
  void CopyAll(float* out, Executor& executor) const;

 private:
  using Read = std::function<Status(const int64_t* keys, size_t n,
                                    const std::function<void(size_t, const char*)>& visit)>;
  // Gives keys that are not in memory their rows on disk, with `read`, or initial ones. `absent`:
  // their positions.
  void Fill(std::vector<uint32_t> absent, const Read& read, Executor& executor);
  // Sets absent_keys_ and key_of_absent_.
  void NumberAbsentKeys();
  // Sets (*rows)[i] to the row of absent_keys_[i] if it is on disk.
  void FetchRows(const Read& read, std::vector<const char*>* rows);
  // Sets each item that is null to the initial row of its key.
  void Initialize(std::vector<const char*>* rows, Executor& executor);

  const std::shared_ptr<const TableConfig> config_;
  const int table_;
  const int64_t* const keys_;
  const size_t n_;
  const size_t row_bytes_;
  const bool keep_numbers_;
  RowNumberCache::Found found_;             // all fields but the keys
  std::unique_ptr<const char*[]> rows_;     // addresses of stored rows (table/row_type.h)
  std::unique_ptr<char[]> copies_;          // rows that a scan has copied, row_bytes_ each
  std::unique_ptr<const float*[]> floats_;  // once Floats() was called
  std::unique_ptr<float[]> widened_;  // float[n, dim], the target of floats_ if rows are narrow
  Status status_;
  std::vector<uint32_t> absent_;         // positions of absent keys
  std::vector<int64_t> absent_keys_;     // these keys, each once
  std::vector<uint32_t> key_of_absent_;  // absent_keys_ has the key of absent_[i] at this position
  std::vector<uint32_t> initial_keys_;   // positions in absent_keys_ of keys with initial rows
  std::unique_ptr<char[]> initial_;      // their rows
  std::vector<char> fetched_;            // room for a row of each absent key, for those on disk
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_GATHER_H_
