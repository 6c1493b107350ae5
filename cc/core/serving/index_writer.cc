#include "core/serving/index_writer.h"

#include <cstring>
#include <utility>

namespace tsps {

Status IndexWriter::Add(const ServingEntry& entry) {
  const uint64_t home = PlaceOf(entry.hash, homes_);
  while (current_ < home) TSPS_RETURN_IF_ERROR(EndBucket());
  ++n_keys_;
  if (used_ + 1 < (1u << Bucket::kKeys)) return Put(entry.key, entry.row);
  guests_.push_back({home, entry.key, entry.row == nullptr,
                     entry.row == nullptr ? std::string() : std::string(entry.row, row_bytes_)});
  return Status();
}

Status IndexWriter::Put(int64_t key, const char* row) {
  const auto place = static_cast<unsigned>(__builtin_popcount(used_));
  keys_[place] = key;
  used_ |= 1u << place;
  if (row == nullptr) {
    erased_ |= 1u << place;
    return Status();
  }
  ++n_rows_;
  return rows_.Append(row, row_bytes_);
}

Status IndexWriter::EndBucket() {
  for (; used_ + 1 < (1u << Bucket::kKeys) && !guests_.empty(); guests_.pop_front()) {
    const Guest& guest = guests_.front();
    if (guest.home == current_) break;  // the bucket is full of its own keys
    const uint64_t distance = current_ - guest.home;
    if (distance > Bucket::kMaxDistance) {
      return Error(Code::kResourceExhausted, "key ", guest.key, " is ", distance,
                   " buckets away from its home, and a serving file allows ", Bucket::kMaxDistance,
                   ". The ids must have been chosen to collide. Export a full version, which has "
                   "another hash seed");
    }
    TSPS_RETURN_IF_ERROR(Put(guest.key, guest.erased ? nullptr : guest.row.data()));
    Bucket& home = BucketAt(guest.home);
    home.word = Bucket::Word(home.first_row(), home.used(), home.erased(), distance);
  }
  Bucket bucket{};
  bucket.word = Bucket::Word(first_row_, used_, erased_, 0);
  std::memcpy(bucket.keys, keys_, sizeof(keys_));
  recent_.push_back(bucket);
  for (; recent_.size() > Bucket::kMaxDistance; ++written_, recent_.pop_front()) {
    TSPS_RETURN_IF_ERROR(index_.Append(&recent_.front(), sizeof(Bucket)));
  }
  ++current_;
  used_ = erased_ = 0;
  first_row_ = n_rows_;
  std::memset(keys_, 0, sizeof(keys_));
  return Status();
}

Status IndexWriter::Finish() {
  while (current_ < BucketsFor(homes_)) TSPS_RETURN_IF_ERROR(EndBucket());
  if (!guests_.empty()) {
    return Error(Code::kResourceExhausted, "the index has no place for key ", guests_.front().key,
                 ". Export a full version, which has another hash seed");
  }
  for (; !recent_.empty(); recent_.pop_front()) {
    TSPS_RETURN_IF_ERROR(index_.Append(&recent_.front(), sizeof(Bucket)));
  }
  return Status();
}

}  // namespace tsps
