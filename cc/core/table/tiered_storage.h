// The files of a table that has rows on a disk, and how its memory is divided.
//
//   <table>/records.config           what never changes of it
//   <table>/records.<generation>/    index and moves of the records (tier/record_store.h)
//   <folder>/table                   whose folder it is
//   <folder>/<generation>/           the log
//
// Records have all planes of a row, so each list of planes has a store of its own generation.
#ifndef TFSPS_CORE_TABLE_TIERED_STORAGE_H_
#define TFSPS_CORE_TABLE_TIERED_STORAGE_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/planes.h"
#include "core/table/table_config.h"
#include "core/tier/record_store.h"

namespace tsps {

// How a table's memory is divided.
struct MemoryPlan {
  uint64_t rows = 0;         // that it has room for
  uint64_t rows_in_all = 0;  // whose places on disk it has room for
  uint64_t cache_bytes = 0;  // for records that were read, or are staged
};
// Of rows of `row_bytes` in all planes. `most_rows`: what the table can have; 0: any number. Then a
// quarter is kept for the places of rows on disk.
MemoryPlan PlanMemory(uint64_t memory, uint64_t row_bytes, uint64_t most_rows);
// The least memory that has room for so many rows in memory.
uint64_t MemoryFor(uint64_t rows, uint64_t row_bytes, uint64_t most_rows);

// InvalidArgument if the table cannot be: paths that are no paths, too little memory, with the
// number that it takes.
Status ValidateStorage(const TableConfig& config);

// ResourceExhausted, with the numbers, if the disk has less room than all rows of the list's planes
// can take; if the number of rows has no limit, less than memory has.
Status CheckDisk(const TableConfig& config, const PlaneList& list);

// Of the table in `table`, a folder in shared memory, after CheckDisk. AlreadyExists if the folder
// on disk is another table's: nothing is touched then.
Status CreateStorage(const std::string& table, const TableConfig& config);
// Not tiered, if the table has no such file.
Result<TieredStorage> LoadStorage(const std::string& table, const std::string& uuid);
// Deletes what a table has on disk, and what it has in memory of that. What is not the table's
// stays.
void RemoveStorage(const std::string& table);

// The store of records of a generation of planes.
RecordLayout LayoutOf(const TableConfig& config, const PlaneList& list);
Result<std::unique_ptr<RecordStore>> CreateRecords(const std::string& table,
                                                   const TableConfig& config, const PlaneList& list,
                                                   uint64_t seed);
Result<std::unique_ptr<RecordStore>> OpenRecords(const std::string& table,
                                                 const TableConfig& config, const PlaneList& list,
                                                 uint64_t seed);
// Removes those of other generations than that one.
void RemoveOtherRecords(const std::string& table, const TieredStorage& storage,
                        uint32_t generation);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TIERED_STORAGE_H_
