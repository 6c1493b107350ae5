// Turns of readers. Group::Read() runs again when a mutation came between, so a reader that takes
// longer than the writer is quiet would never end. After some lost attempts it takes a turn: the
// writer then waits, before its next mutation, until those who have a turn have read.
//
//   <group>/.readers   two bytes to lock, by open-file-description locks:
//     byte 0, the gate      exclusively by the writer while it waits, so that it waits for no more
//                           readers than there are; shared, for a moment, by a reader that comes
//     byte 1, the turns     shared, by every reader that has one
//
// A reader that is killed loses its turn. One that is stopped, or takes too long, is waited for
// less and less often. Any number of readers may have a turn; without one, the writer makes one
// call of the system per mutation.
#ifndef TFSPS_CORE_GROUP_READER_TURNS_H_
#define TFSPS_CORE_GROUP_READER_TURNS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// A reader's turn, until its end.
class ReaderTurn {
 public:
  // Null if it cannot be had now: the writer waits for others, or the group cannot be written to.
  static std::unique_ptr<ReaderTurn> Take(const std::string& group_path);
  ~ReaderTurn();
  ReaderTurn(const ReaderTurn&) = delete;
  ReaderTurn& operator=(const ReaderTurn&) = delete;

 private:
  explicit ReaderTurn(int fd) : fd_(fd) {}
  const int fd_;
};

// The writer's side.
class ReaderTurns {
 public:
  static Result<std::unique_ptr<ReaderTurns>> Open(const std::string& group_path);
  ~ReaderTurns();
  ReaderTurns(const ReaderTurns&) = delete;
  ReaderTurns& operator=(const ReaderTurns&) = delete;

  // Before a mutation: waits for the readers that have a turn.
  void Await();

 private:
  explicit ReaderTurns(int fd) : fd_(fd) {}
  bool AnyTaken() const;

  const int fd_;
  // After a wait in vain: nobody is waited for until then.
  uint64_t not_before_ns_ = 0;
  uint64_t pause_ns_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_READER_TURNS_H_
