// WireBuffers: what several senders have packed (wire.h), as an allgather delivers it.
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
  WireBuffers(const WireBuffers&) = delete;  // tables() points into this
  WireBuffers& operator=(const WireBuffers&) = delete;

  // `data`: buffers one after another, each of PaddedBytes, with `splits` as they were sent; must
  // outlive what tables() says of them. May be called again: the memory of the last call is used
  // then, because in many rounds malloc would leave holes of that size. DataLoss: see WireReader.
  // InvalidArgument: a sender has other tables than `n_tables`, or than sender 0.
  Status Unpack(const uint8_t* data, size_t size, size_t n_tables, size_t splits,
                Executor& executor);

  // Of the last call, if it succeeded: [table], a set for each sender, in their order.
  const std::vector<TableSets>& tables() const { return tables_; }

 private:
  // The arrays of a sender's gradient of a table.
  struct Unpacked {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;  // unless they are used where they lie
  };

  Status UnpackTable(const std::vector<WireReader>& readers, size_t table, Executor& executor);

  std::vector<std::vector<Unpacked>> held_;  // [table][sender]
  std::vector<TableSets> tables_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_BUFFERS_H_
