#include "core/group/erased_log.h"

#include <algorithm>
#include <atomic>

#include "core/base/fault_point.h"
#include "core/group/mutation.h"
#include "core/table/index.h"

namespace tsps {

Status TrimErased(Group::Impl& group, GroupWriter::Impl& writer, int place, size_t n) {
  TableFiles& files = *group.files(place);
  const TableState& state = writer.state.tables[static_cast<size_t>(place)];
  const uint64_t most = TableFiles::MaxErased(state.live), length = state.erased;
  if (length + n <= most || n > most / 2 || length == 0) return Status();
  ErasedKey* const log = files.erased_keys();
  // Generations ascend, and are dropped as a whole. The entries that stay are fewer than those that
  // go, so they do not overwrite the last of these.
  const uint64_t kept_at_most = std::min(most / 2, (length - 1) / 2);
  const uint32_t dropped = log[length - kept_at_most - 1].generation;
  // A trim that was killed may have left later entries among the first ones.
  uint64_t first = length;
  while (first > 0 && log[first - 1].generation > dropped) --first;
  Mutation drop(group, writer);
  TableState& after_drop = drop.next().tables[static_cast<size_t>(place)];
  after_drop.complete_since = std::max(after_drop.complete_since, dropped + 1);
  TSPS_RETURN_IF_ERROR(drop.CommitState());
  TSPS_FAULT_POINT("erased.dropped");
  // The entries before `first` do not count any more, whatever they contain, unless one gets a
  // later generation before it has its key.
  for (uint64_t i = first; i < length; ++i) {
    ErasedKey& to = log[i - first];
    StoreRelaxed(to.generation, 0);
    std::atomic_thread_fence(std::memory_order_release);
    StoreRelaxed(to.key, log[i].key);
    __atomic_store_n(&to.generation, log[i].generation, __ATOMIC_RELEASE);
    TSPS_FAULT_POINT("erased.moved");
  }
  Mutation move(group, writer);
  TableState& after_move = move.next().tables[static_cast<size_t>(place)];
  after_move.erased = length - first;
  ++after_move.erased_trims;
  return move.CommitState();
}

Status LogErased(TableFiles& files, StorageReserver& reserver, const std::vector<int64_t>& erased,
                 uint32_t generation, TableState* state) {
  const uint64_t length = state->erased + erased.size();
  if (length > TableFiles::MaxErased(state->live)) {
    state->erased = 0;
    state->complete_since = generation + 1;
    return Status();
  }
  TSPS_RETURN_IF_ERROR(reserver.Ensure(files.erased(), length * sizeof(ErasedKey)));
  for (const int64_t key : erased) {
    files.erased_keys()[state->erased++] = {key, generation, 0};
  }
  return Status();
}

}  // namespace tsps
