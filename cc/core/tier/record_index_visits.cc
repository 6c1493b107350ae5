// Visits of the entries of a record index. Only the writer makes them.
#include "core/tier/record_index.h"
#include "core/tier/record_index_access.h"

namespace tsps {

using namespace record_index;  // NOLINT: only this class uses these functions

void RecordIndex::ForEach(const Visit& visit) const {
  const IndexHeader& counts = header();
  for (uint32_t i = 0; i <= Mask(counts.depth); ++i) {
    const uint32_t number = directory(counts.depth)[i];
    const State& state = StateOf(number);
    if (i != state.pattern << (counts.depth - state.depth)) continue;  // an earlier entry names it
    ForEachEntry(state, [&](uint32_t number_of_page, uint32_t at) {
      const IndexPage& visited = page(number_of_page);
      visit(TagAt(visited, at), visited.places[at]);
    });
  }
}

Status RecordIndex::ForEachUse(uint64_t first, uint64_t last, const VisitUse& visit) const {
  const uint32_t depth = header().depth;
  bool astray = false;
  for (uint32_t i = Leading(first, depth); i <= Leading(last, depth);) {
    const State& state = StateOf(directory(depth)[i]);
    ForEachEntry(state, [&](uint32_t number, uint32_t at) {
      const uint64_t tag = TagAt(page(number), at);
      if (tag < first || tag > last) return;
      const RecordUse& found = use(number, at);
      astray |= TagOf(found.key, seed_) != tag;
      visit(page(number).places[at], found);
    });
    if (astray) return Damaged(uses_->path(), "a key in it has another tag than its entry");
    i = (state.pattern + 1) << (depth - state.depth);
  }
  return {};
}

}  // namespace tsps
