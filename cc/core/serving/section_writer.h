// SectionWriter: writes one section of a serving file from front to back, with its checksums.
//
// The page cache keeps what one write() call wrote in pieces of contiguous memory of up to that
// size. A file that was written in pieces of 2 MiB is therefore mapped in huge pages, and random
// reads of its rows take up to half of the time.
#ifndef TFSPS_CORE_SERVING_SECTION_WRITER_H_
#define TFSPS_CORE_SERVING_SECTION_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/serving/serving_layout.h"

namespace tsps {

// Not thread-safe. Several may write one file.
class SectionWriter {
 public:
  // `fd` is an open file, which stays the caller's; `name` is for error messages. `most` is the
  // largest number of bytes that the section can have.
  SectionWriter(int fd, std::string name, uint64_t at, uint64_t most);

  // Appends bytes.
  Status Append(const void* data, size_t n);
  // Writes what is left. Nothing can be appended afterwards.
  Status Finish();
  // The offset in the file of the next byte.
  uint64_t end() const { return end_; }
  // The checksums of the section's blocks, after Finish.
  const std::vector<uint32_t>& crcs() const { return crcs_; }

 private:
  Status Flush();

  const int fd_;
  const std::string name_;
  const uint64_t piece_;  // pieces end at multiples of this offset
  uint64_t begin_;        // the offset of the first byte in the buffer
  uint64_t end_;
  std::vector<char> buffer_;
  std::vector<uint32_t> crcs_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SECTION_WRITER_H_
