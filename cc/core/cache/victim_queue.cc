#include "core/cache/victim_queue.h"

namespace tsps {

size_t VictimQueue::bytes() const {
  constexpr size_t kPerNode = sizeof(Class) + 48;  // of a map
  return chunks_.size() * (sizeof(Chunk) + sizeof(void*) / 2) +
         free_.capacity() * sizeof(uint32_t) + classes_.size() * kPerNode;
}

uint32_t VictimQueue::NewChunk() {
  if (free_.empty()) {
    chunks_.emplace_back();
    return static_cast<uint32_t>(chunks_.size() - 1);
  }
  const uint32_t chunk = free_.back();
  free_.pop_back();
  chunks_[chunk].next = kNone;
  return chunk;
}

void VictimQueue::Push(uint32_t slot, uint32_t its_class) {
  Class& its = ClassOf(its_class);
  if (its.last == kNone || its.end == kChunk) {
    const uint32_t chunk = NewChunk();
    if (its.last == kNone) {
      its.first = chunk;
      its.begin = 0;
    } else {
      chunks_[its.last].next = chunk;
    }
    its.last = chunk;
    its.end = 0;
  }
  chunks_[its.last].slots[its.end++] = slot;
  ++size_;
}

// Takes the first entry out of a queue; kNone if there is none.
uint32_t VictimQueue::Front(Class* its) {
  if (its->first == kNone || (its->first == its->last && its->begin == its->end)) return kNone;
  const uint32_t slot = chunks_[its->first].slots[its->begin++];
  --size_;
  if (its->begin == kChunk) {
    free_.push_back(its->first);
    its->begin = 0;
    its->first = chunks_[its->first].next;
    if (its->first == kNone) its->last = kNone;
  }
  return slot;
}

void VictimQueue::Remove(std::map<uint32_t, Class>::iterator its) {
  if (its->second.first != kNone) free_.push_back(its->second.first);
  if (latest_ == &its->second) latest_ = nullptr;
  classes_.erase(its);
}

void VictimQueue::Clear() {
  classes_.clear();
  latest_ = nullptr;
  chunks_.clear();
  free_.clear();
  size_ = 0;
}

}  // namespace tsps
