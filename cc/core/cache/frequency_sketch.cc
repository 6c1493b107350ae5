#include "core/cache/frequency_sketch.h"

#include <cstring>

namespace tsps {
namespace {

float FromHalf(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds a positive, finite value to the nearest half.
uint16_t ToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x8000u) >> 16);
}

}  // namespace

int FrequencySketch::EntryOf(const Line& line, uint16_t hash) {
  int lowest = 0;
  for (int i = 0; i < 16; ++i) {
    if (line.hash[i] == hash && line.count[i] != 0) return i;
    // Halves of positive floats have the order of the floats.
    if (line.count[i] < line.count[lowest]) lowest = i;
  }
  return lowest;
}

float FrequencySketch::Add(uint64_t hash, float weight) {
  Line& line = const_cast<Line&>(LineOf(hash));
  const auto tag = static_cast<uint16_t>(hash);
  const int i = EntryOf(line, tag);
  const float before = line.hash[i] == tag ? FromHalf(line.count[i]) : 0.0f;
  line.hash[i] = tag;
  line.count[i] = ToHalf(before + weight);
  return before + weight;
}

void FrequencySketch::Set(uint64_t hash, float count) {
  Line& line = const_cast<Line&>(LineOf(hash));
  const auto tag = static_cast<uint16_t>(hash);
  const int i = EntryOf(line, tag);
  const bool has_entry = line.hash[i] == tag && line.count[i] != 0;
  const uint16_t half = count > 0 ? ToHalf(count) : 0;
  // A key without an entry does not replace a more frequent key.
  if (!has_entry && half <= line.count[i]) return;
  line.hash[i] = tag;
  line.count[i] = half;
}

void FrequencySketch::Scale(float factor) {
  for (Line& line : lines_) {
    for (uint16_t& count : line.count) count = ToHalf(FromHalf(count) * factor);
  }
}

}  // namespace tsps
