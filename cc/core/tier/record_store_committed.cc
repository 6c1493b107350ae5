// Reads of a committed state, while the writer still removes entries of rows that have left it.
#include <algorithm>
#include <vector>

#include "core/tier/record_store.h"

namespace tsps {
namespace {

// The moves change at most twice during one mutation.
constexpr int kMovesAttempts = 5;

}  // namespace

Status RecordStore::ReadCommitted(uint32_t committed, const int64_t* keys, size_t n, bool urgent,
                                  uint32_t* places, const Visit& visit) {
  // Before the index: what is not among the moves any more has left the index, too.
  std::vector<uint32_t> removed;
  for (int attempt = 0; !moves_->Unfinished(committed, &removed); ++attempt) {
    if (attempt == kMovesAttempts) {
      return Error(Code::kUnavailable, shared_,
                   ": the moves of rows changed during each attempt to read them");
    }
  }
  if (removed.empty()) return Read(keys, n, urgent, places, visit);
  std::sort(removed.begin(), removed.end());
  return Read(keys, n, urgent, places, [&](size_t i, const char* payload) {
    if (std::binary_search(removed.begin(), removed.end(), places[i])) {
      places[i] = kNoRecord;
    } else {
      visit(i, payload);
    }
  });
}

}  // namespace tsps
