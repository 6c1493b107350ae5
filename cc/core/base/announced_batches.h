// AnnouncedBatches: the batches that a dataset has announced and training has not reached.
#ifndef TFSPS_CORE_BASE_ANNOUNCED_BATCHES_H_
#define TFSPS_CORE_BASE_ANNOUNCED_BATCHES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>

namespace tsps {

// A queue of batches in the order of their announcement. A batch leaves it when it is taken or
// dropped. Callers learn of dropped batches by a function that they pass. Not thread-safe.
template <typename Batch>
class AnnouncedBatches {
 public:
  // Call this before Add, with the batch's index in its iterator. Index 0 begins an iterator:
  // drop(batch) is called for all batches of the iterator before it, and they leave, because no
  // step will use them. Returns whether an iterator begins.
  template <typename Drop>
  bool Begin(int64_t index, const Drop& drop) {
    if (index == 0) DropFirst(size(), drop);
    return index == 0;
  }
  void Add(Batch batch) { batches_.push_back(std::move(batch)); }
  template <typename Drop>
  void DropFirst(size_t n, const Drop& drop) {
    for (; n > 0; --n) {
      drop(batches_.front());
      batches_.pop_front();
    }
  }
  Batch TakeFirst() {
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    return batch;
  }

  bool empty() const { return batches_.empty(); }
  size_t size() const { return batches_.size(); }
  Batch& front() { return batches_.front(); }
  Batch& back() { return batches_.back(); }
  Batch& operator[](size_t i) { return batches_[i]; }
  auto begin() { return batches_.begin(); }
  auto end() { return batches_.end(); }
  auto begin() const { return batches_.begin(); }
  auto end() const { return batches_.end(); }

 private:
  std::deque<Batch> batches_;
};

// Streams of batches, one per dataset or per dataset and table. A Stream has `batches`, which are
// AnnouncedBatches. Not thread-safe.
template <typename Stream>
class AnnouncedStreams {
 public:
  // At most `most` streams without batches are remembered.
  explicit AnnouncedStreams(size_t most) : most_(most) {}

  // Returns the stream for which is_wanted(stream) holds; adds one if there is none.
  template <typename IsWanted>
  Stream& Find(const IsWanted& is_wanted, Stream added) {
    const auto stream = std::find_if(streams_.begin(), streams_.end(), is_wanted);
    if (stream != streams_.end()) return *stream;
    if (streams_.size() >= most_) {
      streams_.remove_if([](const Stream& idle) { return idle.batches.empty(); });
    }
    return streams_.emplace_back(std::move(added));
  }
  // Whether any stream has a batch.
  bool AnyBatch() const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const Stream& stream) { return !stream.batches.empty(); });
  }
  // Moves a stream behind all others.
  void MoveToEnd(typename std::list<Stream>::iterator stream) {
    streams_.splice(streams_.end(), streams_, stream);
  }
  auto begin() { return streams_.begin(); }
  auto end() { return streams_.end(); }

 private:
  const size_t most_;
  std::list<Stream> streams_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_ANNOUNCED_BATCHES_H_
