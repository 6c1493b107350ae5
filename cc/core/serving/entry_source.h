// EntrySource: a stream of a table's keys and rows in the order of hashes, from which a serving
// file is written.
#ifndef TFSPS_CORE_SERVING_ENTRY_SOURCE_H_
#define TFSPS_CORE_SERVING_ENTRY_SOURCE_H_

#include <cstdint>

#include "core/base/status.h"
#include "core/serving/row_code.h"
#include "core/serving/serving_file.h"

namespace tsps {

class EntrySource {
 public:
  virtual ~EntrySource() = default;
  // Returns a number that the number of keys does not exceed. A file reserves places for as many.
  virtual uint64_t most_keys() const = 0;
  // Returns the next key, or false at the end. Hashes ascend. The row is valid until the next call.
  virtual Result<bool> Next(ServingEntry* entry) = 0;
  // Returns how far the rows are from those of the table. Known at the end.
  virtual CodeError error() const = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_ENTRY_SOURCE_H_
