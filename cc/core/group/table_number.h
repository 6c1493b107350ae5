// Numbers of tables: what a group calls them.
//
// A group has kMaxTables places. A removed table leaves its place to another, which gets another
// number: the place, plus kMaxTables for every table that was in it before. So a number is never
// another table's, and whoever kept one of a removed table is told that it is gone.
#ifndef TFSPS_CORE_GROUP_TABLE_NUMBER_H_
#define TFSPS_CORE_GROUP_TABLE_NUMBER_H_

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/table/layout.h"

namespace tsps {

// Tables that one place can have had: more make no number.
constexpr uint64_t kMaxRemoved = (1u << 21) - 2;
static_assert((kMaxRemoved + 1) * kMaxTables - 1 <= INT32_MAX);

constexpr int TableNumber(size_t place, uint64_t removed) {
  return static_cast<int>(place + removed * kMaxTables);
}
// Of a number that is not negative.
constexpr size_t PlaceOf(int table) { return static_cast<unsigned>(table) % kMaxTables; }
constexpr uint64_t RemovedBefore(int table) { return static_cast<unsigned>(table) / kMaxTables; }

// Whether there is no table in this place.
inline bool IsVacant(const TableState& place) { return (place.flags & kTableUsed) == 0; }
// 1 to 128 characters of [A-Za-z0-9._-], no leading dot, and no file of every group.
inline bool IsTableName(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 128 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), allowed) && name != "group" && name != "undo" &&
         name != "writer.lock";
}

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_TABLE_NUMBER_H_
