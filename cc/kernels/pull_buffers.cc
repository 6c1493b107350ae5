#include "kernels/pull_buffers.h"

#include <utility>

#include "kernels/features.h"
#include "kernels/process.h"

namespace tsps {
namespace {

const int64_t kFlag = 0;

}  // namespace

Status PullAttributes::Init(const Attributes& attributes) {
  TSPS_ASSIGN_OR_RETURN(tables, attributes.Int("T"));
  TSPS_ASSIGN_OR_RETURN(operation, attributes.String("operation"));
  TSPS_ASSIGN_OR_RETURN(const int n_nodes, attributes.Int("nodes"));
  TSPS_ASSIGN_OR_RETURN(const int own_node, attributes.Int("node"));
  TSPS_ASSIGN_OR_RETURN(const std::string wire, attributes.String("wire"));
  TSPS_ASSIGN_OR_RETURN(type, WireTypeFromName(wire));
  TSPS_ASSIGN_OR_RETURN(const std::string batch, attributes.String("batch"));
  ahead = batch == "next";
  nodes = static_cast<uint32_t>(n_nodes);
  node = static_cast<uint32_t>(own_node);
  if (own_node < n_nodes) return Status();
  return Error(Code::kInvalidArgument, "node must be below ", n_nodes, ". Received: ", own_node);
}

Status ReadRowsOf(const std::vector<TableHandle>& tables,
                  const std::vector<std::vector<int64_t>>& keys,
                  std::vector<std::vector<float>>* rows, Executor& executor) {
  std::vector<RowGather> gathers;
  rows->resize(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    TSPS_RETURN_IF_ERROR(CheckKeys(tables[t].config(), keys[t].data(), keys[t].size()));
    (*rows)[t].resize(keys[t].size() * static_cast<size_t>(tables[t].config().dim));
    gathers.emplace_back(tables[t].known, tables[t].table, keys[t].data(), keys[t].size());
  }
  return ReadRows(tables, gathers, executor,
                  [&](size_t t) { gathers[t].CopyAll((*rows)[t].data(), executor); });
}

WireSet FlagSet(bool flag) { return {&kFlag, nullptr, nullptr, flag ? size_t{1} : 0, 0}; }

Result<std::vector<WireReader>> OpenBuffers(const Tensor& buffers, uint32_t nodes, size_t tables) {
  std::vector<WireReader> readers;
  for (size_t at = 0; at < buffers.size();) {
    TSPS_ASSIGN_OR_RETURN(WireReader reader, WireReader::Open(buffers.data<const uint8_t>() + at,
                                                              buffers.size() - at));
    if (reader.n_tables() != tables) {
      return Error(Code::kInvalidArgument, "node ", readers.size(), " sent ", reader.n_tables(),
                   " tables. Expected: ", tables);
    }
    at += PaddedBytes(reader.bytes(), nodes);
    readers.push_back(std::move(reader));
  }
  ProcessWireCounters().bytes_unpacked.fetch_add(buffers.size(), std::memory_order_relaxed);
  if (readers.size() == nodes) return readers;
  return Error(Code::kInvalidArgument, "received rows or keys of ", readers.size(),
               " nodes. Expected: ", nodes);
}

}  // namespace tsps
