#include "core/group/mutation.h"

#include <algorithm>
#include <exception>

#include "core/base/clock.h"

namespace tsps {
namespace {

constexpr size_t kUndoUnit = 64u << 10;

}  // namespace

Mutation::Mutation(Group::Impl& group, GroupWriter::Impl& writer)
    : group_(group), writer_(writer), next_(writer.state) {}

Mutation::~Mutation() {
  if (begun_ns_ != 0) std::terminate();
}

void Mutation::Reset() { next_ = writer_.state; }

Status Mutation::Start(size_t undo_bytes, size_t room) {
  // Whole units, so that steps of similar sizes do not change the file.
  const size_t units = (std::max(undo_bytes, room) + kUndoUnit - 1) / kUndoUnit;
  TSPS_RETURN_IF_ERROR(
      writer_.reserver.Ensure(group_.undo->file(), UndoLog::SizeFor(units * kUndoUnit)));
  group_.undo->Start();
  return Status();
}

UndoRecordHeader* Mutation::Append(UndoKind kind, int table, size_t n, size_t bytes) {
  return group_.undo->Append(kind, table, n, bytes);
}

void Mutation::DeclareUndo() { group_.undo->Seal(next_.epoch + 1); }

void Mutation::Touches(int table, const uint32_t* rows, size_t n) {
  const auto place = static_cast<size_t>(table);
  const TableState& state = writer_.state.tables[place];
  if (n > 0)
    touched_.push_back({place, state.removed, group_.files(table)->Planes(state), rows, n});
}

void Mutation::Leaves(int table, const std::vector<RecordMove>& moves) {
  const auto place = static_cast<size_t>(table);
  leaving_.push_back({place, writer_.state.tables[place].removed, &moves});
}

void Mutation::Begin(Executor* executor) {
  writer_.turns->Await();
  writer_.images.Refresh(next_.epoch);
  writer_.images.Save(touched_, leaving_, executor);
  writer_.state.tables.reserve(next_.tables.size());  // Publish must not allocate memory
  begun_ns_ = NowNs();
  group_.control->Begin(next_.epoch);
  // A scan that was announced before the sequence word became odd may start with the state before
  // it.
  if (writer_.images.Refresh(next_.epoch)) {
    writer_.images.Save(touched_, leaving_, executor);
  }
}

Status Mutation::CommitState() {
  TSPS_RETURN_IF_ERROR(Start(0));
  DeclareUndo();
  Begin();
  Publish();
  return Status();
}

void Mutation::Seal(const Sealed& sealed) {
  State next = next_;
  ++next.epoch;
  group_.control->Seal(next, sealed);
}

void Mutation::Undo() {
  // After an error the next writer undoes the mutation, as after the end of the process.
  if (!UndoMutation(group_, &writer_.state, /*killed=*/false).ok()) std::terminate();
  begun_ns_ = 0;
}

void Mutation::Publish() {
  ++next_.epoch;
  group_.control->Publish(next_);
  writer_.state = next_;
  nanoseconds_ = NowNs() - begun_ns_;
  begun_ns_ = 0;
}

}  // namespace tsps
