// RecordMoves: the entries that a mutation of the group adds to a record index and removes from it,
// written to shared memory before the mutation is published.
//
// After a kill, the next writer compares the number of the moves with the group's committed state.
// The numbers show whether the mutation was published, so the writer completes the moves or takes
// them back.
//
//   entering: rows that move into memory. Their records are live until the mutation is published.
//   leaving:  rows that move to the log. Their records are live after the mutation is published.
//             Until then readers find the rows in memory first.
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

// The records of a committed state: copies, and rows up to the last one.
struct RecordState {
  uint32_t number;         // of the last moves
  uint32_t last_slot;      // of the last row that a mutation has appended
  uint64_t last_sequence;  // the sequence number of its file; 0: there is none
  uint64_t rows;           // the number of rows in the log
};

class RecordMoves {
 public:
  static Result<std::unique_ptr<RecordMoves>> Create(const std::string& folder);
  static Result<std::unique_ptr<RecordMoves>> Open(const std::string& folder);
  Status MakeWritable() { return file_->MakeWritable(); }

  // Reserves space for n moves.
  Status Reserve(size_t n);
  // Writes the moves of a mutation, for which Reserve has succeeded. `next` is the state that the
  // mutation publishes. Its number counts the mutations that move rows of this table, wraps around,
  // and is also in the group's state.
  void Declare(const RecordState& next, const std::vector<RecordMove>& entering,
               const std::vector<RecordMove>& leaving);
  // Ends the declared moves: the index now has their result.
  void Clear();
  // Completes or takes back the moves of a killed writer. `committed` is the number in the group's
  // committed state. DataLoss: the moves do not fit to it.
  Status Recover(uint32_t committed, RecordIndex& index);

  // --- Any process. ---
  // Reads the last committed state, or the one before it. Returns false if `committed` is older.
  Result<bool> StateOf(uint32_t committed, RecordState* state) const;
  // Reads the places of rows that the last committed state moved into memory, and whose entries may
  // still be in the index. Returns false if the moves changed meanwhile; then try again.
  bool Unfinished(uint32_t committed, std::vector<uint32_t>* places) const;
  // Reads the declared moves into memory if they have this number, else none. Returns false if the
  // moves changed meanwhile; then try again.
  bool Entering(uint32_t number, std::vector<RecordMove>* entering) const;

 private:
  explicit RecordMoves(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  struct StoredState;
  struct Header;
  static uint32_t CrcOf(const StoredState& state);
  void Keep(const RecordState& state);
  Header& header() const { return *reinterpret_cast<Header*>(file_->data()); }
  RecordMove* moves() const;
  uint32_t Crc() const;  // of the declared moves

  const std::unique_ptr<MappedFile> file_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_MOVES_H_
