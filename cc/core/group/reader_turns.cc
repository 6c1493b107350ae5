#include "core/group/reader_turns.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/os/directory.h"

namespace tsps {
namespace {

constexpr off_t kGate = 0;
constexpr off_t kTurns = 1;
// The longest wait, for all readers with a turn together.
constexpr uint64_t kLongestWaitNs = 500'000'000;
constexpr uint64_t kLeastPauseNs = 1'000'000'000;
constexpr uint64_t kMostPauseNs = 64'000'000'000;
constexpr int kPollUs = 100;

std::string TurnsPath(const std::string& group) { return group + "/.readers"; }

struct flock OneByte(short type, off_t byte) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// Changes a lock without waiting. Returns whether it succeeded.
bool SetLock(int fd, short type, off_t byte) {
  struct flock lock = OneByte(type, byte);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

std::unique_ptr<ReaderTurn> ReaderTurn::Take(const std::string& group_path) {
  const auto fd = OpenRegularFile(TurnsPath(group_path), O_RDONLY, "cannot open");
  if (!fd.ok()) return nullptr;
  std::unique_ptr<ReaderTurn> turn(new ReaderTurn(*fd));
  if (!SetLock(*fd, F_RDLCK, kGate)) return nullptr;
  const bool taken = SetLock(*fd, F_RDLCK, kTurns);
  SetLock(*fd, F_UNLCK, kGate);
  return taken ? std::move(turn) : nullptr;
}

ReaderTurn::~ReaderTurn() { close(fd_); }

Result<std::unique_ptr<ReaderTurns>> ReaderTurns::Open(const std::string& group_path) {
  TSPS_ASSIGN_OR_RETURN(
      const int fd, OpenRegularFile(TurnsPath(group_path), O_RDWR | O_CREAT, "cannot open lock"));
  return std::unique_ptr<ReaderTurns>(new ReaderTurns(fd));
}

ReaderTurns::~ReaderTurns() { close(fd_); }

bool ReaderTurns::AnyTaken() const {
  struct flock lock = OneByte(F_WRLCK, kTurns);
  return fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void ReaderTurns::Await() {
  if (TSPS_FAULT_OFF("turns") || !AnyTaken()) return;
  const uint64_t began = NowNs();
  if (began < not_before_ns_) return;
  // The lock of the gate fails while a reader takes a turn, which takes a moment.
  bool closed = SetLock(fd_, F_WRLCK, kGate);
  bool taken = true;
  while (taken && NowNs() < began + kLongestWaitNs) {
    usleep(kPollUs);
    closed = closed || SetLock(fd_, F_WRLCK, kGate);
    taken = AnyTaken();
  }
  if (closed) SetLock(fd_, F_UNLCK, kGate);
  pause_ns_ = taken ? std::clamp(2 * pause_ns_, kLeastPauseNs, kMostPauseNs) : 0;
  not_before_ns_ = taken ? NowNs() + pause_ns_ : 0;
}

}  // namespace tsps
