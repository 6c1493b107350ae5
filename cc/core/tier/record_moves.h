// RecordMoves: which entries of a record index a mutation of the group adds and takes away, written
// down before it is published. Whoever opens the index after a kill is told by the group's
// committed state whether that was published, and finishes or takes back the rest.
//
//   entering: rows that come into memory. Their records are live until the mutation is published.
//   leaving: rows that go to the log. Their records are live from then on; before, what is in
//   memory
//            is looked at first.
#ifndef TFSPS_CORE_TIER_RECORD_MOVES_H_
#define TFSPS_CORE_TIER_RECORD_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/tier/record_index.h"

namespace tsps {

struct RecordMove {
  uint64_t tag;
  uint32_t place;
  uint32_t zero = 0;
};
static_assert(sizeof(RecordMove) == 16);

// What a committed state has in the log.
struct RecordState {
  uint32_t number;  // of the last moves
  uint32_t last;    // the place behind which no record is this state's; kNoRecord: there is none
  uint64_t rows;
};

class RecordMoves {
 public:
  static Result<std::unique_ptr<RecordMoves>> Create(const std::string& folder);
  static Result<std::unique_ptr<RecordMoves>> Open(const std::string& folder);
  Status MakeWritable() { return file_->MakeWritable(); }

  // Room for so many moves.
  Status Reserve(size_t n);
  // `next`: what the mutation publishes. Its number is that of the mutation among those that move
  // rows of this table; it is in the group's state, too, and goes round. There is room.
  void Declare(const RecordState& next, const std::vector<RecordMove>& entering,
               const std::vector<RecordMove>& leaving);
  // The index is as the declared moves leave it.
  void Clear();
  // What a killed writer has left. `committed`: the number in the group's committed state.
  // DataLoss if that cannot be.
  Status Recover(uint32_t committed, RecordIndex& index);

  // --- Any process. ---
  // Of a committed state that is the last one, or the one before. False: it is older.
  Result<bool> StateOf(uint32_t committed, RecordState* state) const;
  // Places of rows that have come into memory with a committed state, the last one, and whose
  // entries may still be in the index. False: look again.
  bool Unfinished(uint32_t committed, std::vector<uint32_t>* places) const;
  // The declared moves into memory, if their number is that one; else none. False: look again.
  bool Entering(uint32_t number, std::vector<RecordMove>* entering) const;

 private:
  explicit RecordMoves(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  struct StoredState;
  struct Header;
  static uint32_t CrcOf(const StoredState& state);
  void Keep(const RecordState& state);
  Header& header() const { return *reinterpret_cast<Header*>(file_->data()); }
  RecordMove* moves() const;
  uint32_t Crc() const;  // of what is declared

  const std::unique_ptr<MappedFile> file_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_MOVES_H_
