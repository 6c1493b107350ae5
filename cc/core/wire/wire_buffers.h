// WireBuffers: unpacks the buffers of several senders (wire.h), which an allgather or an all-to-all
// delivers one after another.
#ifndef TFSPS_CORE_WIRE_WIRE_BUFFERS_H_
#define TFSPS_CORE_WIRE_WIRE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/gradients/merge.h"
#include "core/wire/wire.h"

namespace tsps {

class WireBuffers {
 public:
  WireBuffers() = default;
  WireBuffers(const WireBuffers&) = delete;  // tables() points into the object
  WireBuffers& operator=(const WireBuffers&) = delete;

  // Unpacks the buffers in `data`, each padded by PaddedBytes with the same `splits`. `data` must
  // outlive the use of tables(). A later call reuses the memory of the last one, because over many
  // rounds malloc would leave holes of that size. DataLoss: see WireReader. InvalidArgument: a
  // sender has not `n_tables` tables, or another width of a table than sender 0.
  Status Unpack(const uint8_t* data, size_t size, size_t n_tables, size_t splits,
                Executor& executor);

  // Returns the result of the last call, if it succeeded: for each table, one set per sender, in
  // the order of the senders.
  const std::vector<TableSets>& tables() const { return tables_; }

 private:
  // The arrays of a sender's gradient of a table.
  struct Unpacked {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;  // empty if the rows are used in the buffer
  };

  Status UnpackTable(const std::vector<WireReader>& readers, size_t table, Executor& executor);

  std::vector<std::vector<Unpacked>> held_;  // [table][sender]
  std::vector<TableSets> tables_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_BUFFERS_H_
