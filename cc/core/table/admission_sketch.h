// AdmissionSketch: counts of keys that have no row yet, in bounded memory.
//
// A sketch is an array of lines of 64 bytes. A key belongs to one line, and there to two cells. Its
// count is at most the smaller cell: other keys of the line may raise both. Adding to a key raises
// its cells to its new count, and no others ("conservative update"; C. Estan, G. Varghese, "New
// Directions in Traffic Measurement and Accounting", 2002). The result depends on the order in
// which keys of a line are added, so callers add them in ascending order.
//
// Old counts fade: a line has the step in which it was last changed, and its cells are halved for
// each multiple of the half-life since. Only integers are computed, so that all nodes agree.
//
// The lines are the rows of a table (group/admission_policy.h), so they are committed, undone and
// saved like others.
#ifndef TFSPS_CORE_TABLE_ADMISSION_SKETCH_H_
#define TFSPS_CORE_TABLE_ADMISSION_SKETCH_H_

#include <cstddef>
#include <cstdint>

#include "core/base/hash.h"

namespace tsps {

struct SketchLine {
  uint32_t step;  // of the last change
  uint8_t cells[60];
};
static_assert(sizeof(SketchLine) == 64, "on-disk size");

class AdmissionSketch {
 public:
  static constexpr uint32_t kMostCount = 255;
  static constexpr uint64_t kKeysPerLine = 66;  // or half as many, if cells have 8 bits

  // Returns the number of lines for so many keys without a row. Counts up to 15 take half a byte.
  static uint64_t LinesFor(uint64_t expected_keys, uint32_t count);

  // A sketch of `lines` lines, for a table that admits keys at `count`. `half_life`: of counts, in
  // steps. `seed`: the seed of the index of the sketch's table.
  AdmissionSketch(uint64_t lines, uint32_t count, uint32_t half_life, uint64_t seed)
      : lines_(lines), wide_(IsWide(count)), half_life_(half_life), seed_(~seed) {}
  // Returns whether counts up to `count` need cells of 8 bits, instead of 4.
  static bool IsWide(uint32_t count) { return count > kMostNarrow; }

  // Returns the line of a key.
  uint64_t LineOf(int64_t key) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Hash(key)) * lines_) >> 64);
  }
  // Adds occurrences of a key to its line, and returns its new count, at most kMostCount.
  uint32_t Add(int64_t key, uint32_t occurrences, uint32_t step, SketchLine* line) const;
  // Returns the number of cells of a line that are at least `value` in a step.
  size_t CountAtLeast(const SketchLine& line, uint32_t value, uint32_t step) const;
  size_t cells() const { return wide_ ? sizeof(SketchLine::cells) : 2 * sizeof(SketchLine::cells); }

 private:
  static constexpr uint32_t kMostNarrow = 15;

  uint64_t Hash(int64_t key) const { return HashKey(key, seed_); }
  uint32_t Cell(const SketchLine& line, size_t cell) const;
  void SetCell(SketchLine* line, size_t cell, uint32_t value) const;
  // Halves all cells as often as is due since the last change.
  void Age(uint32_t step, SketchLine* line) const;

  const uint64_t lines_;
  const bool wide_;
  const uint32_t half_life_;
  const uint64_t seed_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ADMISSION_SKETCH_H_
