// Mutation: changes a group's committed state, as a whole or not at all.
//
//   Mutation mutation(group, writer);
//   mutation.next()...        sets what the state becomes
//   mutation.Start(bytes)     reserves space for the undo log; the last thing that can fail
//   mutation.Append(...)      adds before-images of what will be written in place
//   mutation.DeclareUndo()
//   mutation.Touches(...)     names rows that will be written
//   mutation.Begin()          from here on readers wait, or read through the undo log
//   ...                       writes in place
//   mutation.Publish()        makes all of it visible by one store; or
//   mutation.Undo()           restores the before-images
//
// A mutation that is destroyed before Begin() changes nothing. If the process is killed after it,
// the next writer finds the undo log (recovery.cc).
#ifndef TFSPS_CORE_GROUP_MUTATION_H_
#define TFSPS_CORE_GROUP_MUTATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/group/before_images.h"
#include "core/group/control_file.h"
#include "core/group/group_impl.h"
#include "core/group/undo_log.h"

namespace tsps {

// Belongs to the group's writer. Not thread-safe.
class Mutation {
 public:
  Mutation(Group::Impl& group, GroupWriter::Impl& writer);
  // Ends the process if an exception (such as a lack of memory) came between Begin and Publish:
  // only the next writer can undo what is partly written.
  ~Mutation();
  Mutation(const Mutation&) = delete;
  Mutation& operator=(const Mutation&) = delete;

  const State& next() const { return next_; }
  State& next() { return next_; }
  // Starts over from the committed state, after other mutations were published.
  void Reset();

  // Reserves storage for an undo log of `undo_bytes`, or of `room` bytes if that is more.
  Status Start(size_t undo_bytes, size_t room = 0);
  // Returns space for one record; the caller fills the payload.
  UndoRecordHeader* Append(UndoKind kind, int table, size_t n, size_t bytes);
  // Completes the undo log, after all records are filled.
  void DeclareUndo();
  // Announces that these rows are written between Begin and Publish, each once. `rows` must stay
  // until then.
  void Touches(int table, const uint32_t* rows, size_t n);
  // Announces that these entries leave the index of a table's records. `moves` must stay until
  // Begin.
  void Leaves(int table, const std::vector<RecordMove>& moves);
  // Makes readers wait, after scans have their images. `executor` may be null.
  void Begin(Executor* executor = nullptr);
  // After the writes: records that other groups take part in the decision to publish.
  void Seal(const Sealed& sealed);
  // Publish makes the mutation visible; Undo restores what was before Begin.
  void Publish();
  void Undo();
  // Starts, begins and publishes a mutation that changes only the commit record.
  Status CommitState();
  // Leaves a sealed mutation as it is, for the next writer.
  void Leave() { begun_ns_ = 0; }
  bool begun() const { return begun_ns_ != 0; }
  // Returns how long readers have waited: from Begin to Publish.
  uint64_t nanoseconds() const { return nanoseconds_; }

 private:
  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  State next_;
  std::vector<TouchedRows> touched_;
  std::vector<LeavingRecords> leaving_;
  uint64_t begun_ns_ = 0;
  uint64_t nanoseconds_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_MUTATION_H_
