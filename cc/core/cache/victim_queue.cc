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

void VictimQueue::Push(uint32_t slot, uint32_t heat_class) {
  Class& queue = ClassOf(heat_class);
  if (queue.last == kNone || queue.end == kChunk) {
    const uint32_t chunk = NewChunk();
    if (queue.last == kNone) {
      queue.first = chunk;
      queue.begin = 0;
    } else {
      chunks_[queue.last].next = chunk;
    }
    queue.last = chunk;
    queue.end = 0;
  }
  chunks_[queue.last].slots[queue.end++] = slot;
  ++size_;
}

// Removes the first entry of a queue, and returns it; kNone if the queue is empty.
uint32_t VictimQueue::PopFront(Class* queue) {
  if (queue->first == kNone || (queue->first == queue->last && queue->begin == queue->end)) {
    return kNone;
  }
  const uint32_t slot = chunks_[queue->first].slots[queue->begin++];
  --size_;
  if (queue->begin == kChunk) {
    free_.push_back(queue->first);
    queue->begin = 0;
    queue->first = chunks_[queue->first].next;
    if (queue->first == kNone) queue->last = kNone;
  }
  return slot;
}

void VictimQueue::Remove(std::map<uint32_t, Class>::iterator entry) {
  if (entry->second.first != kNone) free_.push_back(entry->second.first);
  if (latest_ == &entry->second) latest_ = nullptr;
  classes_.erase(entry);
}

void VictimQueue::Clear() {
  classes_.clear();
  latest_ = nullptr;
  chunks_.clear();
  free_.clear();
  size_ = 0;
}

}  // namespace tsps
