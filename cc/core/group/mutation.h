// Mutation: a change of a group's committed state, whole or not at all.
//
//   Mutation mutation(group, writer);
//   mutation.next()...        what the state becomes
//   mutation.Start(bytes)     room for the undo log: the last thing that can fail
//   mutation.Append(...)      before-images of what is going to be written in place
//   mutation.DeclareUndo()
//   mutation.Touches(...)    rows that are going to be written
//   mutation.Begin()          from here on readers wait, or look through the undo log
//   ...                       writes in place
//   mutation.Publish()        one store makes all of it visible; or
//   mutation.Undo()           puts the before-images back
//
// Dropped before Begin() it changes nothing. A process that is killed after it leaves the undo log
// to the next writer (recovery.cc).
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

class Mutation {
 public:
  Mutation(Group::Impl& group, GroupWriter::Impl& writer);
  // Ends the process if an exception (of a lack of memory, say) came between Begin and Publish:
  // what is half written can be undone by the next writer only.
  ~Mutation();
  Mutation(const Mutation&) = delete;
  Mutation& operator=(const Mutation&) = delete;

  const State& next() const { return next_; }
  State& next() { return next_; }
  // Begins anew from the committed state, after other mutations.
  void Reset();

  // `room`: what the undo log keeps reserved, if that is more.
  Status Start(size_t undo_bytes, size_t room = 0);
  // Space for one record; the caller fills the payload.
  UndoRecordHeader* Append(UndoKind kind, int table, size_t n, size_t bytes);
  void DeclareUndo();
  // Between Begin and Publish these rows are written, each once. `rows` stays until then.
  void Touches(int table, const uint32_t* rows, size_t n);
  // These entries leave the index of a table's records. `moves` stays until Begin.
  void Leaves(int table, const std::vector<RecordMove>& moves);
  // `executor` may be null.
  void Begin(Executor* executor = nullptr);
  // After the writes: says that it is for others to decide, too, whether this is published.
  void Seal(const Sealed& sealed);
  void Publish();
  void Undo();
  // Leaves what is sealed as it is.
  void Leave() { begun_ns_ = 0; }
  bool begun() const { return begun_ns_ != 0; }
  // For how long readers have waited: from Begin to Publish.
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
