// Finds rows on disk by the hashes of their keys, in memory alone.
#include "core/base/hash.h"
#include "core/tier/record_store.h"

namespace tsps {

Status RecordStore::ForEachUse(uint64_t begin, uint64_t span, const VisitUse& visit) const {
  constexpr int kShift = 64 - kTagBits;
  const auto look = [&](uint64_t first, uint64_t last) {
    return index_->ForEachUse(first >> kShift, last >> kShift,
                              [&](uint32_t place, const RecordUse& use) {
                                const uint64_t hash = HashKey(use.key, index_->seed());
                                if (hash - begin <= span) visit(hash, place, use);
                              });
  };
  const uint64_t end = begin + span;  // modulo 2^64
  if (end >= begin) return look(begin, end);
  // If one tag belongs to both ends, the entries of all tags are looked at once.
  if (end >> kShift == begin >> kShift) return look(0, UINT64_MAX);
  TSPS_RETURN_IF_ERROR(look(begin, UINT64_MAX));
  return look(0, end);
}

}  // namespace tsps
