#include "core/serving/section_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/os/file_io.h"

namespace tsps {

SectionWriter::SectionWriter(int fd, std::string name, uint64_t at, uint64_t most)
    : fd_(fd),
      name_(std::move(name)),
      piece_(std::min(kServingPiece, RoundUp(std::max<uint64_t>(most, 1), kServingBlock))),
      begin_(at),
      end_(at),
      buffer_(static_cast<size_t>(piece_)) {}

Status SectionWriter::Append(const void* data, size_t n) {
  const char* from = static_cast<const char*>(data);
  while (n > 0) {
    const uint64_t piece_end = (begin_ / piece_ + 1) * piece_;
    const auto part = static_cast<size_t>(std::min<uint64_t>(n, piece_end - end_));
    std::memcpy(&buffer_[static_cast<size_t>(end_ - begin_)], from, part);
    from += part;
    n -= part;
    end_ += part;
    if (end_ == piece_end) TSPS_RETURN_IF_ERROR(Flush());
  }
  return Status();
}

Status SectionWriter::Flush() {
  const Section bytes{begin_, end_};
  for (uint64_t number = 0; number < bytes.blocks(); ++number) {
    const Section block = bytes.block(number);
    crcs_.push_back(
        BlockCrc(&buffer_[static_cast<size_t>(block.at - begin_)], block.end - block.at));
  }
  TSPS_RETURN_IF_ERROR(
      WriteAt(fd_, name_, buffer_.data(), static_cast<size_t>(end_ - begin_), begin_));
  begin_ = end_;
  return Status();
}

Status SectionWriter::Finish() { return end_ == begin_ ? Status() : Flush(); }

}  // namespace tsps
