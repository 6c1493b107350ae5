#include "core/table/admission_sketch.h"

#include <algorithm>
#include <cstring>

namespace tsps {

uint64_t AdmissionSketch::LinesFor(uint64_t expected_keys, uint32_t count) {
  const uint64_t keys_per_line = IsWide(count) ? kKeysPerLine / 2 : kKeysPerLine;
  return std::max<uint64_t>(1, (expected_keys + keys_per_line - 1) / keys_per_line);
}

uint32_t AdmissionSketch::Cell(const SketchLine& line, size_t cell) const {
  return wide_ ? line.cells[cell] : line.cells[cell / 2] >> (cell % 2 * 4) & 15;
}

void AdmissionSketch::SetCell(SketchLine* line, size_t cell, uint32_t value) const {
  if (wide_) {
    line->cells[cell] = static_cast<uint8_t>(value);
    return;
  }
  const size_t shift = cell % 2 * 4;
  uint8_t& pair = line->cells[cell / 2];
  pair = static_cast<uint8_t>((pair & ~(15u << shift)) | value << shift);
}

void AdmissionSketch::Age(uint32_t step, SketchLine* line) const {
  const uint32_t last = std::min(line->step, step);
  const uint32_t halvings = std::min<uint32_t>(step / half_life_ - last / half_life_, 8);
  line->step = step;
  if (halvings == 0) return;
  for (uint8_t& cell : line->cells) {
    // The upper half of a byte must not reach the lower one.
    const uint32_t value = wide_ ? uint32_t{cell} >> halvings
                                 : (cell & 15u) >> halvings | (cell >> 4u >> halvings) << 4u;
    cell = static_cast<uint8_t>(value);
  }
}

uint32_t AdmissionSketch::Add(int64_t key, uint32_t occurrences, uint32_t step,
                              SketchLine* line) const {
  Age(step, line);
  const uint64_t hash = Hash(key);
  const size_t n = cells();
  // Not the leading bits, which choose the line.
  const size_t first = (hash & 0xFFFF) % n;
  const size_t second = (first + 1 + (hash >> 16 & 0xFFFF) % (n - 1)) % n;
  const uint32_t most = wide_ ? kMostCount : kMostNarrow;
  const uint32_t before = std::min(Cell(*line, first), Cell(*line, second));
  const uint32_t count = before + std::min(occurrences, most - before);
  for (const size_t cell : {first, second}) {
    if (Cell(*line, cell) < count) SetCell(line, cell, count);
  }
  return count;
}

size_t AdmissionSketch::CountAtLeast(const SketchLine& line, uint32_t value, uint32_t step) const {
  SketchLine aged = line;
  Age(step, &aged);
  size_t n = 0;
  for (size_t cell = 0; cell < cells(); ++cell) n += Cell(aged, cell) >= value;
  return n;
}

}  // namespace tsps
