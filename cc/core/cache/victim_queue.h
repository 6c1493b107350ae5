// VictimQueue: slots in the order in which they should be given away, coldest first.
//
// Each heat class has a queue. When a slot gets hotter, it is added to another queue; Pop skips its
// old entry. The caller rebuilds the queues before old entries are more than two fifths of the
// slots. So recording a use writes 4 bytes at the end of a queue, and Pop does not visit slots that
// stay. The queues take at most 6 bytes per slot, and 320 bytes per class.
#ifndef TFSPS_CORE_CACHE_VICTIM_QUEUE_H_
#define TFSPS_CORE_CACHE_VICTIM_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace tsps {

class VictimQueue {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit VictimQueue(uint32_t slots) : slots_(slots) {}

  size_t bytes() const;
  // Returns whether the queues should be rebuilt: Clear, then Push all slots.
  bool full() const { return size_ > size_t{slots_} + size_t{slots_} * 2 / 5 + 2 * kChunk; }

  // Adds a slot to a class.
  void Push(uint32_t slot, uint32_t heat_class);
  // Removes the slot of the lowest class that was pushed first, and returns it; kNone if the queues
  // are empty. Stores its class in `heat_class`. current(slot) returns the present class of a slot.
  template <typename Current>
  uint32_t Pop(const Current& current, uint32_t* heat_class);
  void Clear();

 private:
  static constexpr size_t kChunk = 62;
  struct Chunk {
    uint32_t slots[kChunk];
    uint32_t next = kNone;
    uint32_t unused = 0;
  };
  struct Class {
    uint32_t first = kNone, last = kNone;  // chunks
    uint32_t begin = 0, end = 0;           // in the first, in the last
  };

  Class& ClassOf(uint32_t number) {
    if (latest_ == nullptr || latest_number_ != number) {
      latest_ = &classes_[number];  // a map's elements stay where they are
      latest_number_ = number;
    }
    return *latest_;
  }
  uint32_t NewChunk();
  uint32_t PopFront(Class* queue);
  void Remove(std::map<uint32_t, Class>::iterator entry);

  uint32_t slots_;
  size_t size_ = 0;  // entries
  std::map<uint32_t, Class> classes_;
  Class* latest_ = nullptr;
  uint32_t latest_number_ = 0;
  std::deque<Chunk> chunks_;    // a deque grows without copies
  std::vector<uint32_t> free_;  // free chunks
};

template <typename Current>
uint32_t VictimQueue::Pop(const Current& current, uint32_t* heat_class) {
  while (!classes_.empty()) {
    const auto lowest = classes_.begin();
    const uint32_t slot = PopFront(&lowest->second);
    if (slot == kNone) {
      Remove(lowest);
    } else if (current(slot) == lowest->first) {
      *heat_class = lowest->first;
      return slot;
    }
  }
  return kNone;
}

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_VICTIM_QUEUE_H_
