#include "core/tier/record_moves.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/limits.h"
#include "core/base/racy_copy.h"

namespace tsps {

// A RecordState as it lies there.
struct RecordMoves::StoredState {
  uint32_t number;  // written first
  uint32_t last;
  uint32_t rows;  // each has a place of its own
  uint32_t crc;   // of what is before
};

struct RecordMoves::Header {
  uint32_t number;
  uint32_t declared;  // 0 or 1: any number may come round
  uint64_t n_entering, n_leaving;
  StoredState states[2];  // of even and odd numbers
  uint32_t crc;           // of the declared moves, their number and counts
  uint32_t zero;
};

namespace {
constexpr size_t kMovesHeaderBytes = 64;
std::string MovesPath(const std::string& folder) { return folder + "/records.moves"; }
}  // namespace

uint32_t RecordMoves::Crc() const {
  const Header& of = header();
  const uint32_t counts = Crc32c(of.number, &of.n_entering, 2 * sizeof(uint64_t));
  return Crc32c(counts, moves(), (of.n_entering + of.n_leaving) * sizeof(RecordMove));
}

Result<std::unique_ptr<RecordMoves>> RecordMoves::Create(const std::string& folder) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(MovesPath(folder), kPageBytes, SIZE_MAX));
  std::unique_ptr<RecordMoves> moves(new RecordMoves(std::move(file)));
  moves->Keep({0, kNoRecord, 0});
  return moves;
}

Result<std::unique_ptr<RecordMoves>> RecordMoves::Open(const std::string& folder) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(MovesPath(folder), kPageBytes, SIZE_MAX));
  return std::unique_ptr<RecordMoves>(new RecordMoves(std::move(file)));
}

RecordMove* RecordMoves::moves() const {
  return reinterpret_cast<RecordMove*>(file_->data() + kMovesHeaderBytes);
}

Status RecordMoves::Reserve(size_t n) {
  return file_->Reserve(kMovesHeaderBytes + n * sizeof(RecordMove));
}

void RecordMoves::Declare(const RecordState& next, const std::vector<RecordMove>& entering,
                          const std::vector<RecordMove>& leaving) {
  Header& made = header();
  static_assert(sizeof(Header) == kMovesHeaderBytes);
  Keep(next);
  std::copy(entering.begin(), entering.end(), moves());
  std::copy(leaving.begin(), leaving.end(), moves() + entering.size());
  made.n_entering = entering.size();
  made.n_leaving = leaving.size();
  made.number = next.number;
  made.crc = Crc();
  TSPS_FAULT_POINT("record_moves_written");
  __atomic_store_n(&made.declared, 1u, __ATOMIC_RELEASE);
  TSPS_FAULT_POINT("record_moves_declared");
}

void RecordMoves::Clear() { __atomic_store_n(&header().declared, 0u, __ATOMIC_RELEASE); }

Status RecordMoves::Recover(uint32_t committed, RecordIndex& index) {
  const Header found = header();
  if (found.declared == 0) return {};
  const size_t room = (file_->RefreshSize() - kMovesHeaderBytes) / sizeof(RecordMove);
  if (found.n_entering > room || found.n_leaving > room - found.n_entering) {
    return Damaged(file_->path(), found.n_entering, " and ", found.n_leaving,
                   " moves are more than it has");
  }
  if (found.crc != Crc() && !TSPS_FAULT_OFF("damage")) {
    return Damaged(file_->path(), "the checksum of its moves");
  }
  // Numbers go round.
  if (found.number != committed && found.number != committed + 1) {
    return Damaged(file_->path(), "it has moves of number ", found.number, ", and ", committed,
                   " is committed");
  }
  if (TSPS_FAULT_OFF("moves")) return {};
  const bool published = found.number == committed;
  const RecordMove* begin = moves() + (published ? 0 : found.n_entering);
  const RecordMove* end = begin + (published ? found.n_entering : found.n_leaving);
  for (const RecordMove* move = begin; move != end; ++move) {
    index.Remove(move->tag, move->place);  // perhaps done before
    TSPS_FAULT_POINT("record_moves_recovered_one");
  }
  Clear();
  return {};
}

uint32_t RecordMoves::CrcOf(const StoredState& state) {
  return Crc32c(0, &state, offsetof(StoredState, crc));
}

void RecordMoves::Keep(const RecordState& state) {
  StoredState made = {state.number, state.last, static_cast<uint32_t>(state.rows), 0};
  made.crc = CrcOf(made);
  StoredState& kept = header().states[state.number & 1];
  // Who reads the rest of it, and finds it half written, finds another number there.
  __atomic_store_n(&kept.number, made.number, __ATOMIC_SEQ_CST);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  kept = made;
}

Result<bool> RecordMoves::StateOf(uint32_t committed, RecordState* state) const {
  const StoredState& kept = header().states[committed & 1];
  StoredState found;
  const auto look = [&] {
    RacyRead(&found, &kept, sizeof(found));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  };
  look();
  *state = {found.number, found.last, found.rows};
  if (found.number != committed || CrcOf(found) == found.crc || TSPS_FAULT_OFF("damage")) {
    return found.number == committed;
  }
  look();  // another one may have come while it was read
  if (found.number != committed) return false;
  return Damaged(file_->path(), "the checksum of the state of moves ", committed);
}

bool RecordMoves::Unfinished(uint32_t committed, std::vector<uint32_t>* places) const {
  places->clear();
  std::vector<RecordMove> entering;
  if (!Entering(committed, &entering)) return false;
  for (const RecordMove& move : entering) places->push_back(move.place);
  return true;
}

bool RecordMoves::Entering(uint32_t number, std::vector<RecordMove>* entering) const {
  Header found;
  const auto look = [&] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    RacyRead(&found, &header(), sizeof(found));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  };
  entering->clear();
  look();
  // Moves are finished before others are declared.
  if (found.declared == 0 || found.number != number) return true;
  const size_t room = (file_->RefreshSize() - kMovesHeaderBytes) / sizeof(RecordMove);
  if (found.n_entering > room) return false;
  entering->resize(found.n_entering);
  RacyRead(entering->data(), moves(), entering->size() * sizeof(RecordMove));
  look();
  return found.declared != 0 && found.number == number && found.n_entering == entering->size();
}

}  // namespace tsps
