// AnnouncedRows: the rows in memory that announced batches need, so that they stay until then.
//
// The array lies in memory that all processes of a job share. Each process announces its own
// batches, and the group's writer chooses the rows that leave. The array is a hint and has no
// locks: it keeps 2 bytes per row, the step until which the row is needed.
#ifndef TFSPS_CORE_TIER_ANNOUNCED_ROWS_H_
#define TFSPS_CORE_TIER_ANNOUNCED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/prefetch.h"
#include "core/base/status.h"
#include "core/os/mapped_file.h"

namespace tsps {

class AnnouncedRows {
 public:
  static constexpr uint64_t kMostSteps = 1024;  // the largest distance of a future step

  // Create or map the array in `folder`, for row numbers below `rows`. Larger row numbers are never
  // needed.
  static Result<std::unique_ptr<AnnouncedRows>> Create(const std::string& folder, size_t rows);
  static Result<std::unique_ptr<AnnouncedRows>> Open(const std::string& folder, size_t rows);

  MappedFile* file() const { return file_.get(); }
  size_t bytes() const { return rows_ * sizeof(uint16_t); }
  // Records that one of the `steps` steps after the committed step `step` needs a row. Thread-safe.
  void Announce(uint32_t row, uint64_t step, uint64_t steps);
  void Prefetch(uint32_t row) const { PrefetchLine(Until(row)); }
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
