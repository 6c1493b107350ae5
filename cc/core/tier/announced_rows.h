// AnnouncedRows: which rows in memory coming batches need, so that they stay until then. In memory
// that all processes of a job share: each announces its own batches, and the group's writer chooses
// the rows that leave.
//
// A hint, without locks: 2 bytes per row, the step until which it is needed.
#ifndef TFSPS_CORE_TIER_ANNOUNCED_ROWS_H_
#define TFSPS_CORE_TIER_ANNOUNCED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/os/mapped_file.h"

namespace tsps {

class AnnouncedRows {
 public:
  static constexpr uint64_t kMostSteps = 1024;  // ahead

  // In `folder`, for rows below `rows`; others are never needed.
  static Result<std::unique_ptr<AnnouncedRows>> Create(const std::string& folder, size_t rows);
  static Result<std::unique_ptr<AnnouncedRows>> Open(const std::string& folder, size_t rows);

  MappedFile* file() const { return file_.get(); }
  size_t bytes() const { return rows_ * sizeof(uint16_t); }
  // Thread-safe. After step `step` is committed: a row is needed in one of the `steps` next ones.
  void Announce(uint32_t row, uint64_t step, uint64_t steps);
  void Prefetch(uint32_t row) const { __builtin_prefetch(Until(row)); }
  bool IsNeeded(uint32_t row, uint64_t step) const { return StepsLeft(row, step) > 0; }

 private:
  AnnouncedRows(std::unique_ptr<MappedFile> file, size_t rows)
      : file_(std::move(file)), rows_(rows) {}
  uint16_t* Until(uint32_t row) const { return reinterpret_cast<uint16_t*>(file_->data()) + row; }
  uint64_t StepsLeft(uint32_t row, uint64_t step) const;

  const std::unique_ptr<MappedFile> file_;
  const size_t rows_;
  bool writable_ = true;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_ANNOUNCED_ROWS_H_
