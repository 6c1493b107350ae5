// RowUse: when steps have trained a row, and how often. Eviction decides by it (group/eviction.h).
//
// A table records it if its configuration has the plane kUsePlane. A step writes it together with
// the row; lookups do not. Only integers are computed, so that all nodes agree.
#ifndef TFSPS_CORE_TABLE_ROW_USE_H_
#define TFSPS_CORE_TABLE_ROW_USE_H_

#include <algorithm>
#include <cstdint>

namespace tsps {

constexpr char kUsePlane[] = "use";

struct RowUse {
  uint32_t step;   // the last step that trained the row, or in which it was written first
  uint32_t count;  // of steps that trained it, in units of 1 / kUseUnit, as of that step
};
static_assert(sizeof(RowUse) == 8, "on-disk size");

constexpr uint32_t kUseUnit = 256;
constexpr uint32_t kDefaultHalfLife = 10000;  // steps

// Returns a step as RowUse has it.
inline uint32_t UseStep(uint64_t step) {
  return static_cast<uint32_t>(std::min<uint64_t>(step, UINT32_MAX));
}

// Returns the count as of `step`: it halves whenever the number of a step is a multiple of
// `half_life`, so that counts of rows that were trained in different steps can be compared.
inline uint32_t DecayedCount(const RowUse& use, uint32_t step, uint32_t half_life) {
  if (step <= use.step) return use.count;
  const uint32_t halvings = step / half_life - use.step / half_life;
  return halvings < 32 ? use.count >> halvings : 0;
}

// Returns the use of a row that `step` trains.
inline RowUse Used(const RowUse& use, uint32_t step, uint32_t half_life) {
  const uint32_t count = DecayedCount(use, step, half_life);
  return {step, count + std::min(kUseUnit, UINT32_MAX - count)};
}

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_USE_H_
