#include "core/exchange/exchange_areas.h"

#include <algorithm>
#include <cstring>

#include "core/base/hash.h"
#include "core/exchange/rank_file.h"

namespace tsps {
namespace {

constexpr size_t kCopyGrain = 1024;

constexpr uint64_t kPartSeed = 0xD6E8FEB86659FD93ULL;

// Returns the part of the hash space, of `parts` equal ones, to which a key belongs.
inline uint32_t PartOf(int64_t key, uint32_t parts) {
  const uint64_t hash = HashKey(key, kPartSeed);
  return static_cast<uint32_t>((static_cast<unsigned __int128>(hash) * parts) >> 64);
}

// The rows of a table in a contribution. Part p is [starts[p], starts[p + 1]).
struct Grouped {
  uint32_t* starts;
  uint32_t* counted;  // whether there are counts
  int64_t* keys;
  int32_t* counts;  // null: there are none
  float* rows;

  // For a writer: of an area for `n` rows.
  static Grouped Take(ArrayArea& area, size_t n_parts, size_t n, bool counted, size_t dim) {
    Grouped grouped = TakeHead(area, n_parts);
    grouped.TakeRows(area, n, counted, dim);
    return grouped;
  }
  // For a reader: of an area that was written.
  static Grouped Take(ArrayArea& area, size_t n_parts, size_t dim) {
    Grouped grouped = TakeHead(area, n_parts);
    grouped.TakeRows(area, grouped.starts[n_parts], *grouped.counted != 0, dim);
    return grouped;
  }

 private:
  static Grouped TakeHead(ArrayArea& area, size_t n_parts) {
    Grouped grouped;
    grouped.starts = area.Take<uint32_t>(n_parts + 2);
    grouped.counted = grouped.starts + n_parts + 1;
    return grouped;
  }
  void TakeRows(ArrayArea& area, size_t n, bool with_counts, size_t dim) {
    keys = area.Take<int64_t>(n);
    counts = with_counts ? area.Take<int32_t>(n) : nullptr;
    rows = area.Take<float>(n * dim);
  }
};

// The rows of a table that a rank has merged.
struct MergedRows {
  uint32_t* n;
  int64_t* keys;
  int32_t* counts;
  float* rows;

  static MergedRows Take(ArrayArea& area, const size_t* n, size_t dim) {
    MergedRows merged;
    merged.n = area.Take<uint32_t>(1);
    const size_t rows = n != nullptr ? *n : *merged.n;
    merged.keys = area.Take<int64_t>(rows);
    merged.counts = area.Take<int32_t>(rows);
    merged.rows = area.Take<float>(rows * dim);
    return merged;
  }
};

}  // namespace

PartOrder::PartOrder(const std::vector<Contribution>& tables, uint32_t parts, Executor& executor)
    : starts_(tables.size()), order_(tables.size()) {
  std::vector<size_t> sizes;
  for (const Contribution& table : tables) sizes.push_back(table.n);
  ForEachItem(sizes, executor, [&](size_t t) {
    const Contribution& table = tables[t];
    std::vector<uint32_t>& starts = starts_[t];
    starts.assign(parts + 1, 0);
    for (size_t i = 0; i < table.n; ++i) ++starts[PartOf(table.keys[i], parts) + 1];
    for (uint32_t p = 0; p < parts; ++p) starts[p + 1] += starts[p];
    order_[t].resize(table.n);
    std::vector<uint32_t> next(starts.begin(), starts.end() - 1);
    for (size_t i = 0; i < table.n; ++i) {
      order_[t][next[PartOf(table.keys[i], parts)]++] = static_cast<uint32_t>(i);
    }
  });
}

size_t PartOrder::AreaBytes(const std::vector<Contribution>& tables, uint32_t first,
                            uint32_t n) const {
  ArrayArea area(nullptr);
  for (size_t t = 0; t < tables.size(); ++t) {
    const size_t rows = starts_[t][first + n] - starts_[t][first];
    Grouped::Take(area, n, rows, tables[t].counts != nullptr, tables[t].dim);
  }
  return area.bytes();
}

void PartOrder::WriteArea(const std::vector<Contribution>& tables, uint32_t first, uint32_t n,
                          char* area, Executor& executor) const {
  ArrayArea arrays(area);
  std::vector<Grouped> grouped;
  std::vector<size_t> sizes;
  for (size_t t = 0; t < tables.size(); ++t) {
    sizes.push_back(starts_[t][first + n] - starts_[t][first]);
    const bool counted = tables[t].counts != nullptr;
    grouped.push_back(Grouped::Take(arrays, n, sizes.back(), counted, tables[t].dim));
  }
  ForEachItem(sizes, executor, [&](size_t t) {
    const size_t dim = tables[t].dim;
    const uint32_t first_row = starts_[t][first];
    for (uint32_t p = 0; p <= n; ++p) grouped[t].starts[p] = starts_[t][first + p] - first_row;
    *grouped[t].counted = tables[t].counts != nullptr;
    const uint32_t* const order = order_[t].data() + first_row;
    executor.ParallelFor(sizes[t], kCopyGrain, [&](size_t begin, size_t end) {
      for (size_t k = begin; k < end; ++k) {
        grouped[t].keys[k] = tables[t].keys[order[k]];
        if (grouped[t].counts != nullptr) grouped[t].counts[k] = tables[t].counts[order[k]];
        if (dim == 0) continue;  // only keys
        std::memcpy(grouped[t].rows + k * dim, tables[t].rows + order[k] * dim,
                    dim * sizeof(float));
      }
    });
  });
}

PartOrder::Rows PartOrder::Part(size_t table, uint32_t part) const {
  const std::vector<uint32_t>& starts = starts_[table];
  return {order_[table].data() + starts[part], starts[part + 1] - starts[part]};
}

void ReadContribution(char* area, uint32_t n_parts, uint32_t part, const uint32_t* dims,
                      std::vector<std::vector<GradientSet>>* sets) {
  ArrayArea arrays(area);
  for (size_t t = 0; t < sets->size(); ++t) {
    const Grouped grouped = Grouped::Take(arrays, n_parts, dims[t]);
    const size_t begin = grouped.starts[part], end = grouped.starts[part + 1];
    const int32_t* const counts = grouped.counts == nullptr ? nullptr : grouped.counts + begin;
    (*sets)[t].push_back(
        {grouped.keys + begin, counts, grouped.rows + begin * dims[t], end - begin});
  }
}

size_t MergedAreaBytes(const std::vector<MergedGradients>& merged, const uint32_t* dims) {
  ArrayArea area(nullptr);
  for (size_t t = 0; t < merged.size(); ++t) {
    const size_t n = merged[t].keys.size();
    MergedRows::Take(area, &n, dims[t]);
  }
  return area.bytes();
}

void WriteMergedKeys(const std::vector<MergedGradients>& merged, const uint32_t* dims, char* area,
                     std::vector<float*>* rows) {
  ArrayArea arrays(area);
  for (size_t t = 0; t < merged.size(); ++t) {
    const size_t n = merged[t].keys.size();
    const MergedRows target = MergedRows::Take(arrays, &n, dims[t]);
    *target.n = static_cast<uint32_t>(n);
    std::copy(merged[t].keys.begin(), merged[t].keys.end(), target.keys);
    std::copy(merged[t].counts.begin(), merged[t].counts.end(), target.counts);
    rows->push_back(target.rows);
  }
}

std::vector<GradientSet> ReadMerged(char* area, size_t n_tables, const uint32_t* dims) {
  ArrayArea arrays(area);
  std::vector<GradientSet> sets;
  for (size_t t = 0; t < n_tables; ++t) {
    const MergedRows rows = MergedRows::Take(arrays, nullptr, dims[t]);
    sets.push_back({rows.keys, rows.counts, rows.rows, *rows.n});
  }
  return sets;
}

}  // namespace tsps
