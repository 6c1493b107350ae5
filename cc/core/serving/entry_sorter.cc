#include "core/serving/entry_sorter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/hash.h"
#include "core/os/file_io.h"

namespace tsps {
namespace {

constexpr uint64_t kPartBytes = 12u << 20;   // of the records of a part; sorted in memory
constexpr uint64_t kBufferBytes = 8u << 20;  // of the buffers of all parts

// Opens a file without a name in a folder.
Result<int> OpenNameless(const std::string& folder) {
  int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  std::string name = folder + "/.sorting-XXXXXX";  // the file system has no nameless files
  fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoError("cannot create a temporary file in", folder);
  unlink(name.c_str());
  return fd;
}

}  // namespace

EntrySorter::EntrySorter(RowCode code, size_t dim, uint64_t hash_seed, uint64_t most_keys,
                         std::string folder)
    : code_(code),
      dim_(dim),
      row_bytes_(CodedBytes(code, dim)),
      record_bytes_(kPrefix + row_bytes_),
      hash_seed_(hash_seed),
      folder_(std::move(folder)),
      coded_(row_bytes_),
      decoded_(dim) {
  const uint64_t bytes = most_keys * record_bytes_;
  parts_.resize(static_cast<size_t>(bytes / kPartBytes) + 1);
  // One part needs no file.
  const uint64_t share = std::max<uint64_t>(kBufferBytes / parts_.size(), 4096);
  buffer_bytes_ =
      parts_.size() == 1
          ? ~size_t{0}
          : static_cast<size_t>(std::max<uint64_t>(share / record_bytes_, 1)) * record_bytes_;
}

EntrySorter::~EntrySorter() {
  if (fd_ >= 0) close(fd_);
}

Status EntrySorter::Add(int64_t key, const float* row) {
  if (const Status status = EncodeRow(code_, row, dim_, coded_.data()); !status.ok()) {
    return Error(status.code(), "the row of key ", key, " cannot be exported: ", status.message());
  }
  if (code_ != RowCode::kFloat32) {
    DecodeRow(code_, coded_.data(), dim_, decoded_.data());
    error_.Add(row, decoded_.data(), dim_);
  }
  return Append(key, coded_.data());
}

Status EntrySorter::Erase(int64_t key) { return Append(key, nullptr); }

Status EntrySorter::Append(int64_t key, const char* row) {
  Part& part = parts_[static_cast<size_t>(PlaceOf(HashKey(key, hash_seed_), parts_.size()))];
  if (part.buffer.capacity() == 0 && parts_.size() > 1) part.buffer.reserve(buffer_bytes_);
  const size_t at = part.buffer.size();
  part.buffer.resize(at + record_bytes_);
  char* const record = &part.buffer[at];
  std::memcpy(record, &key, sizeof(key));
  record[sizeof(key)] = row != nullptr ? 1 : 0;
  if (row != nullptr) std::memcpy(record + kPrefix, row, row_bytes_);
  ++added_;
  return part.buffer.size() < buffer_bytes_ ? Status() : Spill(part);
}

Status EntrySorter::Spill(Part& part) {
  if (fd_ < 0) {
    TSPS_ASSIGN_OR_RETURN(fd_, OpenNameless(folder_));
  }
  TSPS_RETURN_IF_ERROR(WriteAt(fd_, "a temporary file in " + folder_, part.buffer.data(),
                               part.buffer.size(), file_bytes_));
  part.chunks.push_back(file_bytes_);
  file_bytes_ += part.buffer.size();
  part.buffer.clear();
  return Status();
}

Status EntrySorter::Load() {
  Part part;
  std::swap(part, parts_[next_part_++]);
  std::vector<char>().swap(records_);  // before the next ones are read
  order_.clear();
  next_ = 0;
  records_.reserve(part.chunks.size() * buffer_bytes_ + part.buffer.size());
  records_.resize(part.chunks.size() * buffer_bytes_);
  for (size_t chunk = 0; chunk < part.chunks.size(); ++chunk) {
    const std::string name = "a temporary file in " + folder_;
    TSPS_ASSIGN_OR_RETURN(const size_t n, ReadAt(fd_, name, &records_[chunk * buffer_bytes_],
                                                 buffer_bytes_, part.chunks[chunk]));
    if (n != buffer_bytes_) {
      errno = EIO;
      return ErrnoError("cannot read", name);
    }
  }
  if (part.chunks.empty()) {
    records_ = std::move(part.buffer);
  } else {
    records_.insert(records_.end(), part.buffer.begin(), part.buffer.end());
  }
  const size_t n = records_.size() / record_bytes_;
  order_.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    int64_t key;
    std::memcpy(&key, &records_[i * record_bytes_], sizeof(key));
    order_.emplace_back(HashKey(key, hash_seed_), static_cast<uint32_t>(i));
  }
  std::sort(order_.begin(), order_.end());  // of one key, the last record is the last
  return Status();
}

Result<bool> EntrySorter::Next(ServingEntry* entry) {
  while (next_ == order_.size()) {
    if (next_part_ == parts_.size()) return false;
    TSPS_RETURN_IF_ERROR(Load());
  }
  while (next_ + 1 < order_.size() && order_[next_ + 1].first == order_[next_].first) ++next_;
  const auto& [hash, number] = order_[next_++];
  const char* const record = &records_[number * record_bytes_];
  entry->hash = hash;
  std::memcpy(&entry->key, record, sizeof(entry->key));
  entry->row = record[sizeof(entry->key)] != 0 ? record + kPrefix : nullptr;
  return true;
}

}  // namespace tsps
