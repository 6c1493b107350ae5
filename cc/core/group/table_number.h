// Numbers of tables in a group.
//
// A group has kMaxTables places. When a table is removed, another one may get its place, but with
// another number: the place, plus kMaxTables for every earlier table of the place. So no two tables
// ever have the same number, and whoever uses that of a removed table gets NotFound.
#ifndef TFSPS_CORE_GROUP_TABLE_NUMBER_H_
#define TFSPS_CORE_GROUP_TABLE_NUMBER_H_

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/table/layout.h"

namespace tsps {

// The most tables that a place can have had: the numbers of further ones would overflow.
constexpr uint64_t kMaxRemoved = (1u << 21) - 2;
static_assert((kMaxRemoved + 1) * kMaxTables - 1 <= INT32_MAX);

// Returns the number of a table from its place and the number of earlier tables there.
constexpr int TableNumber(size_t place, uint64_t removed) {
  return static_cast<int>(place + removed * kMaxTables);
}
// Return the place, and the number of earlier tables there. The number must not be negative.
constexpr size_t PlaceOf(int table) { return static_cast<unsigned>(table) % kMaxTables; }
constexpr uint64_t RemovedBefore(int table) { return static_cast<unsigned>(table) / kMaxTables; }

// Returns whether a place has no table.
inline bool IsVacant(const TableState& place) { return (place.flags & kTableUsed) == 0; }
// Returns whether a table can have this name: 1 to 128 characters of [A-Za-z0-9._-], no leading
// dot, and not the name of a group's file.
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
