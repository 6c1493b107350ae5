// RowGather: where the rows of some keys are, absent keys' initial rows included, and copies of
// them to where they are wanted.
#ifndef TFSPS_CORE_GROUP_ROW_GATHER_H_
#define TFSPS_CORE_GROUP_ROW_GATHER_H_

#include <cstddef>
#include <cstdint>
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
  RowGather(std::shared_ptr<const TableConfig> config, int table, const int64_t* keys, size_t n);

  // Probes in parallel. Every attempt of a Read() calls this first; initial rows are computed by
  // the first attempt only, as long as the same keys are absent.
  void Find(const ReadView& view, Executor& executor);
  // The same by a scan, which needs no further attempt: rows() are copies then.
  Status Find(Scan& scan, Executor& executor);

  // Address of each key's row, in the table or here; of an attempt, Valid in the attempt of the
  // last Find().
  const float* const* rows() const { return rows_.get(); }
  size_t n() const { return n_; }
  size_t n_absent() const { return absent_.size(); }
  // After the last attempt. FailedPrecondition, naming a key, if absent keys may be rows of another
  // tier: then rows() are not theirs.
  Status CheckPresent() const;
  // The rows, in the order of the keys: float[n, dim]. Reads rows that a writer may be changing.
  void CopyAll(float* out, Executor& executor) const;

 private:
  // Gives absent keys their initial rows.
  void Initialize(std::vector<uint32_t> absent, Executor& executor);

  const std::shared_ptr<const TableConfig> config_;
  const int table_;
  const int64_t* const keys_;
  const size_t n_;
  std::unique_ptr<const float*[]> rows_;
  std::unique_ptr<float[]> copies_;   // float[n, dim], of a scan
  bool elsewhere_ = false;            // absent keys may be rows of another tier
  std::vector<uint32_t> absent_;      // positions in keys_
  std::unique_ptr<float[]> initial_;  // their rows, float[absent_.size(), dim]
};

// out[i] = *rows[inverse[i]]: float[n, dim]. Reads rows that a writer may be changing, as RacyRead
// does.
void CopyRows(const float* const* rows, const int32_t* inverse, size_t n, size_t dim, float* out,
              Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_GATHER_H_
