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

// A RecordState in the file.
struct RecordMoves::StoredState {
  uint32_t number;  // written first
  uint32_t last_slot;
  uint64_t last_sequence;
  uint32_t rows;  // 32 bits suffice, because each row has its own place
  uint32_t crc;   // of the fields before it
};

struct RecordMoves::Header {
  uint32_t number;
  uint32_t declared;  // 0 or 1; no value of `number` can mean "none", because numbers wrap around
  uint64_t n_entering, n_leaving;
  StoredState states[2];  // of even and of odd numbers
  uint32_t crc;           // of the declared moves, their number and counts
  uint32_t zeros[13];
};

namespace {
constexpr size_t kMovesHeaderBytes = 128;
std::string MovesPath(const std::string& folder) { return folder + "/records.moves"; }
}  // namespace

uint32_t RecordMoves::Crc() const {
  const Header& stored = header();
  const uint32_t counts = Crc32c(stored.number, &stored.n_entering, 2 * sizeof(uint64_t));
  return Crc32c(counts, moves(), (stored.n_entering + stored.n_leaving) * sizeof(RecordMove));
}

Result<std::unique_ptr<RecordMoves>> RecordMoves::Create(const std::string& folder) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(MovesPath(folder), kPageBytes, SIZE_MAX));
  std::unique_ptr<RecordMoves> moves(new RecordMoves(std::move(file)));
  moves->Keep({0, 0, 0, 0});
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
  Header& stored = header();
  static_assert(sizeof(Header) == kMovesHeaderBytes);
  Keep(next);
  std::copy(entering.begin(), entering.end(), moves());
  std::copy(leaving.begin(), leaving.end(), moves() + entering.size());
  stored.n_entering = entering.size();
  stored.n_leaving = leaving.size();
  stored.number = next.number;
  stored.crc = Crc();
  TSPS_FAULT_POINT("record_moves_written");
  __atomic_store_n(&stored.declared, 1u, __ATOMIC_RELEASE);
  TSPS_FAULT_POINT("record_moves_declared");
}

void RecordMoves::Clear() { __atomic_store_n(&header().declared, 0u, __ATOMIC_RELEASE); }

Status RecordMoves::Recover(uint32_t committed, RecordIndex& index) {
  const Header stored = header();
  if (stored.declared == 0) return {};
  const size_t capacity = (file_->RefreshSize() - kMovesHeaderBytes) / sizeof(RecordMove);
  if (stored.n_entering > capacity || stored.n_leaving > capacity - stored.n_entering) {
    return Damaged(file_->path(), "its header counts ", stored.n_entering, " and ",
                   stored.n_leaving, " moves. The file has space for ", capacity);
  }
  if (stored.crc != Crc() && !TSPS_FAULT_OFF("damage")) {
    return Damaged(file_->path(), "the checksum of its moves does not match");
  }
  // `committed + 1` may wrap around, as the numbers do.
  if (stored.number != committed && stored.number != committed + 1) {
    return Damaged(file_->path(), "it has moves with number ", stored.number,
                   ", but the group has committed number ", committed);
  }
  if (TSPS_FAULT_OFF("moves")) return {};
  const bool published = stored.number == committed;
  const RecordMove* begin = moves() + (published ? 0 : stored.n_entering);
  const RecordMove* end = begin + (published ? stored.n_entering : stored.n_leaving);
  for (const RecordMove* move = begin; move != end; ++move) {
    index.Remove(move->tag, move->place);  // the killed process may have removed it
    TSPS_FAULT_POINT("record_moves_recovered_one");
  }
  Clear();
  return {};
}

uint32_t RecordMoves::CrcOf(const StoredState& state) {
  return Crc32c(0, &state, offsetof(StoredState, crc));
}

void RecordMoves::Keep(const RecordState& state) {
  StoredState next = {state.number, state.last_slot, state.last_sequence,
                      static_cast<uint32_t>(state.rows), 0};
  next.crc = CrcOf(next);
  StoredState& stored = header().states[state.number & 1];
  // The number changes first, so that a reader of a half-written state finds the new number.
  __atomic_store_n(&stored.number, next.number, __ATOMIC_SEQ_CST);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  stored = next;
}

Result<bool> RecordMoves::StateOf(uint32_t committed, RecordState* state) const {
  const StoredState& stored = header().states[committed & 1];
  StoredState copy;
  const auto read = [&] {
    RacyRead(&copy, &stored, sizeof(copy));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  };
  read();
  *state = {copy.number, copy.last_slot, copy.last_sequence, copy.rows};
  if (copy.number != committed || CrcOf(copy) == copy.crc || TSPS_FAULT_OFF("damage")) {
    return copy.number == committed;
  }
  read();  // a later state may have replaced it during the first read
  if (copy.number != committed) return false;
  return Damaged(file_->path(), "the checksum of the state of moves ", committed,
                 " does not match");
}

bool RecordMoves::Unfinished(uint32_t committed, std::vector<uint32_t>* places) const {
  places->clear();
  std::vector<RecordMove> entering;
  if (!Entering(committed, &entering)) return false;
  for (const RecordMove& move : entering) places->push_back(move.place);
  return true;
}

bool RecordMoves::Entering(uint32_t number, std::vector<RecordMove>* entering) const {
  Header copy;
  const auto read_header = [&] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    RacyRead(&copy, &header(), sizeof(copy));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  };
  entering->clear();
  read_header();
  // The writer finishes moves before it declares the next ones.
  if (copy.declared == 0 || copy.number != number) return true;
  const size_t capacity = (file_->RefreshSize() - kMovesHeaderBytes) / sizeof(RecordMove);
  if (copy.n_entering > capacity) return false;
  entering->resize(copy.n_entering);
  RacyRead(entering->data(), moves(), entering->size() * sizeof(RecordMove));
  read_header();
  return copy.declared != 0 && copy.number == number && copy.n_entering == entering->size();
}

}  // namespace tsps
