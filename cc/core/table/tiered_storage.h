// The files of a tiered table's rows on disk.
//
//   <table>/records.config           the folder on disk, the memory and the size of the log's
//                                    files, which never change
//   <table>/records.<generation>/    index and moves of the records (tier/record_store.h)
//   <folder>/table                   which table owns the folder
//   <folder>/<generation>/           the log
//
// Records have all planes of a row, so each list of planes has its own store, with its generation.
#ifndef TFSPS_CORE_TABLE_TIERED_STORAGE_H_
#define TFSPS_CORE_TABLE_TIERED_STORAGE_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/memory_plan.h"
#include "core/table/planes.h"
#include "core/table/table_config.h"
#include "core/tier/record_store.h"

namespace tsps {

// Returns InvalidArgument if the folder is not an absolute path, or the memory is too small; the
// message has the memory that is needed.
Status ValidateStorage(const TableConfig& config);

// Returns ResourceExhausted, with the numbers, if the disk has less free space than all rows with
// the planes of the list can take; if the number of rows has no limit, less than the table's
// memory.
Status CheckDisk(const TableConfig& config, const PlaneList& list);

// Creates the files of a table, after CheckDisk. `table` is the table's folder in shared memory.
// AlreadyExists, with nothing changed: the folder on disk is another table's.
Status CreateStorage(const std::string& table, const TableConfig& config);
// Returns the storage of a table; it is not tiered if the table has no records.config.
Result<TieredStorage> LoadStorage(const std::string& table, const std::string& uuid);
// Deletes a table's files on disk, and their part in memory. Files that are not the table's stay.
void RemoveStorage(const std::string& table);

// Returns the layout of the records of a list of planes; creates their store; opens it. `seed` is
// that of the store's index.
RecordLayout LayoutOf(const TableConfig& config, const PlaneList& list);
Result<std::unique_ptr<RecordStore>> CreateRecords(const std::string& table,
                                                   const TableConfig& config, const PlaneList& list,
                                                   uint64_t seed);
Result<std::unique_ptr<RecordStore>> OpenRecords(const std::string& table,
                                                 const TableConfig& config, const PlaneList& list,
                                                 uint64_t seed);
// Deletes the stores of other generations.
void RemoveOtherRecords(const std::string& table, const TieredStorage& storage,
                        uint32_t generation);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TIERED_STORAGE_H_
