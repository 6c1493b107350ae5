// Turns of readers. Group::Read() runs again when a mutation came between, so a reader that takes
// longer than the writer pauses would never finish. After some lost attempts it takes a turn:
// before its next mutation, the writer waits until all readers with a turn have read.
//
//   <group>/.readers   two bytes to lock, by open-file-description locks:
//     byte 0, the gate      the writer locks it exclusively while it waits, so that no more readers
//                           come in; a reader that takes a turn locks it shared for a moment
//     byte 1, the turns     every reader with a turn locks it shared
//
// A reader that is killed loses its turn. The writer waits less and less often for a reader that is
// stopped or takes too long. Any number of readers may have a turn. If none has, the writer makes
// one system call per mutation.
#ifndef TFSPS_CORE_GROUP_READER_TURNS_H_
#define TFSPS_CORE_GROUP_READER_TURNS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// A reader's turn. It lasts until the destructor.
class ReaderTurn {
 public:
  // Takes a turn without waiting. Returns null if the writer is waiting for others, or if this
  // process cannot open the file.
  static std::unique_ptr<ReaderTurn> Take(const std::string& group_path);
  ~ReaderTurn();
  ReaderTurn(const ReaderTurn&) = delete;
  ReaderTurn& operator=(const ReaderTurn&) = delete;

 private:
  explicit ReaderTurn(int fd) : fd_(fd) {}
  const int fd_;
};

// The writer's side. Not thread-safe.
class ReaderTurns {
 public:
  // Creates the file if it does not exist, and opens it.
  static Result<std::unique_ptr<ReaderTurns>> Open(const std::string& group_path);
  ~ReaderTurns();
  ReaderTurns(const ReaderTurns&) = delete;
  ReaderTurns& operator=(const ReaderTurns&) = delete;

  // Waits for the readers that have a turn. The writer calls it before each mutation.
  void Await();

 private:
  explicit ReaderTurns(int fd) : fd_(fd) {}
  bool AnyTaken() const;

  const int fd_;
  // After a wait that timed out, nobody is waited for until this time.
  uint64_t not_before_ns_ = 0;
  uint64_t pause_ns_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_READER_TURNS_H_
