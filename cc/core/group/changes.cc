// Which rows of a table changed since a change generation.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/executor.h"
#include "core/base/racy_copy.h"
#include "core/group/group_impl.h"
#include "core/group/scan.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr size_t kChunk = 4096;  // rows
// The most rows whose change generations are read at once. The first piece has as many rows as are
// wanted; pieces then double, because few rows seem to have changed.
constexpr size_t kLooked = size_t{1} << 15;

}  // namespace

Result<Changes> Scan::ChangedSince(int table, uint32_t generation) {
  Changes changes;
  TSPS_ASSIGN_OR_RETURN(auto erased, ErasedSince(table, generation));
  changes.everything = !erased.has_value();
  if (!changes.everything) changes.erased = std::move(*erased);
  const uint32_t since = changes.everything ? 0 : generation;
  std::vector<int64_t> keys(kChunk);
  char* const planes[kMaxPlanes] = {};
  while (true) {
    TSPS_ASSIGN_OR_RETURN(const size_t n, NextChanged(table, since, kChunk, keys.data(), planes));
    if (n == 0) return changes;
    changes.written.insert(changes.written.end(), keys.begin(),
                           keys.begin() + static_cast<ptrdiff_t>(n));
  }
}

Result<std::optional<std::vector<int64_t>>> Scan::ErasedSince(int table, uint32_t generation) {
  const TableState& state = StateOf(table);
  if (generation < state.complete_since || generation > state_.changes) return {std::nullopt};
  std::vector<ErasedKey> log(state.erased);
  RacyRead(log.data(), PartOf(table).files->erased_keys(), log.size() * sizeof(ErasedKey));
  // The log may have been emptied, or moved within its file, and overwritten meanwhile.
  State now;
  group_.impl_->control->LoadLastState(&now);
  const size_t place = PlaceOf(table);
  if (place >= now.tables.size() || now.tables[place].removed != RemovedBefore(table) ||
      now.tables[place].complete_since != state.complete_since ||
      now.tables[place].erased_trims != state.erased_trims) {
    return {std::nullopt};
  }
  std::vector<int64_t> erased;
  for (const ErasedKey& entry : log) {
    if (entry.generation >= generation) erased.push_back(entry.key);
  }
  std::sort(erased.begin(), erased.end());
  erased.erase(std::unique(erased.begin(), erased.end()), erased.end());
  return {std::move(erased)};
}

Result<size_t> Scan::NextChanged(int table, uint32_t generation, size_t n, int64_t* keys,
                                 char* const* planes) {
  Part& part = PartOf(table);
  const PlaneList& list = *part.list;
  const size_t key_plane = list.trained();
  const size_t changed_plane = key_plane + 1;
  SerialExecutor executor;
  std::vector<uint32_t> rows;
  std::vector<uint32_t> changed;
  size_t done = 0;
  // Sets the addresses where row `done` goes in each wanted plane, keys and change generations
  // included.
  const auto set_addresses = [&](char** to) {
    for (size_t p = 0; p < list.planes.size(); ++p) {
      to[p] = planes[p] == nullptr ? nullptr : planes[p] + done * list.planes[p].row_bytes;
    }
  };
  for (size_t look_at = std::min(n, kLooked); done < n && part.next < StateOf(table).rows;
       look_at = std::min(2 * look_at, kLooked)) {
    const size_t m = std::min<uint64_t>(look_at, StateOf(table).rows - part.next);
    changed.resize(m);
    char* look[kMaxPlanes] = {};
    look[changed_plane] = reinterpret_cast<char*>(changed.data());
    TSPS_RETURN_IF_ERROR(CopyNext(part, m, look));
    rows.clear();
    size_t seen = 0;
    for (; seen < m && done + rows.size() < n; ++seen) {
      if (changed[seen] == kFreeRow) continue;
      ++part.live;
      if (changed[seen] >= generation) rows.push_back(static_cast<uint32_t>(part.next + seen));
    }
    char* to[kMaxPlanes];
    set_addresses(to);
    char* const wanted_keys = to[key_plane];
    to[key_plane] = reinterpret_cast<char*>(keys + done);
    TSPS_RETURN_IF_ERROR(Copy(table, rows.data(), rows.size(), to, executor));
    if (wanted_keys != nullptr) {
      std::memcpy(wanted_keys, keys + done, rows.size() * sizeof(int64_t));
    }
    done += rows.size();
    part.next += seen;
    if (announced()) file().passed(NumberOf(part)).store(part.next, std::memory_order_release);
  }
  if (done == n) return done;
  TSPS_RETURN_IF_ERROR(CheckLive(part));
  while (done < n) {
    const size_t m = std::min(n - done, kLooked);
    char* to[kMaxPlanes];
    set_addresses(to);
    std::vector<uint32_t> row_generations;
    if (to[changed_plane] == nullptr) {
      row_generations.resize(m);
      to[changed_plane] = reinterpret_cast<char*>(row_generations.data());
    }
    TSPS_ASSIGN_OR_RETURN(const size_t n_read, NextOnDisk(table, m, keys + done, to));
    if (n_read == 0) return done;
    size_t kept = 0;
    for (size_t i = 0; i < n_read; ++i) {
      uint32_t row_generation;
      std::memcpy(&row_generation, to[changed_plane] + i * sizeof(row_generation),
                  sizeof(row_generation));
      if (row_generation < generation) continue;
      if (kept != i) {
        keys[done + kept] = keys[done + i];
        for (size_t p = 0; p < list.planes.size(); ++p) {
          const size_t bytes = list.planes[p].row_bytes;
          if (to[p] != nullptr) std::memcpy(to[p] + kept * bytes, to[p] + i * bytes, bytes);
        }
      }
      ++kept;
    }
    done += kept;
  }
  return done;
}

}  // namespace tsps
