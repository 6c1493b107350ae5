// VictimQueue: slots in the order in which they should be given away, coldest first.
//
// A slot stands in the queue of its class of heat. One that gets hotter is put into another queue,
// and what stands in its old one is passed over when its turn comes; before such entries are more
// than two fifths of the slots, all queues are made anew. So noting a use costs writing 4 bytes at
// an end, and taking a victim does not look at slots that stay. At most 6 bytes per slot, and 320
// per class.
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
  // Whether there are so many entries that they should be made anew: Clear, then Push all slots.
  bool full() const { return size_ > size_t{slots_} + size_t{slots_} * 2 / 5 + 2 * kChunk; }

  // A slot is in this class now.
  void Push(uint32_t slot, uint32_t its_class);
  // A slot of the lowest class, in the order in which they were pushed; its class in `its_class`.
  // `current(slot)`: its class now. kNone if there is none.
  template <typename Current>
  uint32_t Pop(const Current& current, uint32_t* its_class);
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
  uint32_t Front(Class* its);
  void Remove(std::map<uint32_t, Class>::iterator its);

  uint32_t slots_;
  size_t size_ = 0;  // entries
  std::map<uint32_t, Class> classes_;
  Class* latest_ = nullptr;
  uint32_t latest_number_ = 0;
  std::deque<Chunk> chunks_;    // grows without a copy
  std::vector<uint32_t> free_;  // chunks
};

template <typename Current>
uint32_t VictimQueue::Pop(const Current& current, uint32_t* its_class) {
  while (!classes_.empty()) {
    const auto lowest = classes_.begin();
    const uint32_t slot = Front(&lowest->second);
    if (slot == kNone) {
      Remove(lowest);
    } else if (current(slot) == lowest->first) {
      *its_class = lowest->first;
      return slot;
    }
  }
  return kNone;
}

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_VICTIM_QUEUE_H_
