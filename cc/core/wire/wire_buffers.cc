#include "core/wire/wire_buffers.h"

#include <utility>

namespace tsps {
namespace {

// Allocates 1/16 more than n, so that rounds of about the same size reuse the memory.
template <typename T>
void Resize(std::vector<T>& values, size_t n) {
  if (n > values.capacity()) {
    values = std::vector<T>();  // avoids a copy of the old values
    values.reserve(n + n / 16);
  }
  values.resize(n);
}

}  // namespace

Status WireBuffers::Unpack(const uint8_t* data, size_t size, size_t n_tables, size_t splits,
                           Executor& executor) {
  std::vector<WireReader> readers;
  for (size_t at = 0; at < size;) {
    TSPS_ASSIGN_OR_RETURN(WireReader reader, WireReader::Open(data + at, size - at));
    if (reader.n_tables() != n_tables) {
      return Error(Code::kInvalidArgument, "sender ", readers.size(), " sent gradients of ",
                   reader.n_tables(), " tables. Expected: ", n_tables);
    }
    at += PaddedBytes(reader.bytes(), splits);
    readers.push_back(std::move(reader));
  }
  std::vector<size_t> sizes(n_tables);
  for (const WireReader& reader : readers) {
    for (size_t t = 0; t < n_tables; ++t) sizes[t] += reader.n(t);
  }
  held_.resize(n_tables);
  tables_.assign(n_tables, TableSets());
  std::vector<Status> statuses(n_tables);
  ForEachItem(sizes, executor, [&](size_t t) { statuses[t] = UnpackTable(readers, t, executor); });
  return FirstError(statuses);
}

Status WireBuffers::UnpackTable(const std::vector<WireReader>& readers, size_t table,
                                Executor& executor) {
  TableSets& sets = tables_[table];
  if (!readers.empty()) sets.dim = readers.front().dim(table);
  held_[table].resize(readers.size());
  for (size_t s = 0; s < readers.size(); ++s) {
    const WireReader& reader = readers[s];
    if (reader.dim(table) != sets.dim) {
      return Error(Code::kInvalidArgument, "sender ", s, " sent rows of ", reader.dim(table),
                   " floats for table ", table, ", sender 0 of ", sets.dim);
    }
    const size_t n = reader.n(table);
    Unpacked& unpacked = held_[table][s];
    Resize(unpacked.keys, n);
    Resize(unpacked.counts, n);
    TSPS_RETURN_IF_ERROR(reader.Keys(table, unpacked.keys.data()));
    TSPS_RETURN_IF_ERROR(reader.Counts(table, unpacked.counts.data()));
    const float* rows = reader.RowsInPlace(table);
    if (rows == nullptr) {
      Resize(unpacked.rows, n * sets.dim);
      reader.Rows(table, unpacked.rows.data(), executor);
      rows = unpacked.rows.data();
    }
    sets.sets.push_back({unpacked.keys.data(), unpacked.counts.data(), rows, n});
  }
  return Status();
}

}  // namespace tsps
