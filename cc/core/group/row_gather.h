// RowGather: where the rows of some keys are, absent keys' initial rows included, and copies of
// them to where they are wanted.
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

// The rows of unique keys of one table. For use inside Group::Read(), which may run its callback
// again.
class RowGather {
 public:
  // `keys` is int64[n] and must outlive this.
  // `numbers`: keep the row numbers for TakeFound().
  RowGather(std::shared_ptr<const TableConfig> config, int table, const int64_t* keys, size_t n,
            bool numbers = false);

  // Probes in parallel. Every attempt of a Read() calls this first; initial rows are computed by
  // the first attempt only, as long as the same keys are absent.
  void Find(const ReadView& view, Executor& executor);
  // The same by a scan, which needs no further attempt: it copies the rows.
  Status Find(Scan& scan, Executor& executor);

  size_t n() const { return n_; }
  size_t n_absent() const { return absent_.size(); }  // in no tier
  // After the last attempt: its state, and the row numbers that it found; none, if they were not
  // kept. Once.
  RowNumberCache::Found TakeFound();
  // After the last attempt: why rows on disk could not be read, if they could not.
  Status status() const { return status_; }

  // --- The rows of the last Find(), in its attempt: they may be where a writer is changing them.

  // Address of each key's row, in the table or here. Of rows that are not stored as floats, copies
  // are made.
  const float* const* Floats(Executor& executor);
  // out[i] = the row of keys[inverse[i]]: float[n, dim].
  void CopyRows(const int32_t* inverse, size_t n, float* out, Executor& executor) const;
  // The same in the order of the keys: float[n(), dim].
  void CopyAll(float* out, Executor& executor) const;

 private:
  // Gives keys that are not in memory their rows on disk, by `read`, or initial ones.
  using Read = std::function<Status(const int64_t* keys, size_t n,
                                    const std::function<void(size_t, const char*)>& visit)>;
  void Fetch(std::vector<uint32_t> absent, const Read& read, Executor& executor);
  void Initialize(std::vector<uint32_t> absent, Executor& executor);

  const std::shared_ptr<const TableConfig> config_;
  const int table_;
  const int64_t* const keys_;
  const size_t n_;
  const size_t row_bytes_;
  const bool keep_numbers_;
  RowNumberCache::Found found_;             // without the keys
  std::unique_ptr<const char*[]> rows_;     // as they are stored (table/row_type.h)
  std::unique_ptr<char[]> copies_;          // row_bytes_ for each key, of a scan
  std::unique_ptr<const float*[]> floats_;  // once they are asked for
  std::unique_ptr<float[]> widened_;        // float[n, dim], where floats_ are, if rows are narrow
  Status status_;
  std::vector<uint32_t> absent_;     // positions in keys_
  std::unique_ptr<char[]> initial_;  // their rows
  std::vector<char> fetched_;        // rows that are on disk
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_GATHER_H_
