#include "core/tier/announced_rows.h"

#include <algorithm>
#include <utility>

namespace tsps {
namespace {

// The array stores a step as step % kSteps + 1; 0 means no step. A step of the distant past may
// look like one of the next kMostSteps steps, with the probability kMostSteps / kSteps.
constexpr uint64_t kSteps = 65535;

std::string AnnouncedPath(const std::string& folder) { return folder + "/records.announced"; }
size_t BytesFor(size_t rows) { return std::max<size_t>(rows, 1) * sizeof(uint16_t); }

}  // namespace

Result<std::unique_ptr<AnnouncedRows>> AnnouncedRows::Create(const std::string& folder,
                                                             size_t rows) {
  const size_t bytes = BytesFor(rows);
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(AnnouncedPath(folder), bytes, bytes));
  return std::unique_ptr<AnnouncedRows>(new AnnouncedRows(std::move(file), rows));
}

Result<std::unique_ptr<AnnouncedRows>> AnnouncedRows::Open(const std::string& folder, size_t rows) {
  const size_t bytes = BytesFor(rows);
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(AnnouncedPath(folder), bytes, bytes));
  std::unique_ptr<AnnouncedRows> announced(new AnnouncedRows(std::move(file), rows));
  // On a read-only file system, Announce does nothing.
  announced->writable_ = announced->file_->MakeWritable().ok();
  return announced;
}

uint64_t AnnouncedRows::StepsLeft(uint32_t row, uint64_t step) const {
  if (row >= rows_) return 0;
  const uint16_t until = __atomic_load_n(Until(row), __ATOMIC_RELAXED);
  if (until == 0) return 0;
  const uint64_t left = (until - 1 + kSteps - step % kSteps) % kSteps;
  return left > kMostSteps ? 0 : left;
}

void AnnouncedRows::Announce(uint32_t row, uint64_t step, uint64_t steps) {
  if (row >= rows_ || !writable_) return;
  steps = std::min(steps, kMostSteps);
  if (StepsLeft(row, step) >= steps) return;
  const auto until = static_cast<uint16_t>((step + steps) % kSteps + 1);
  __atomic_store_n(Until(row), until, __ATOMIC_RELAXED);
}

}  // namespace tsps
