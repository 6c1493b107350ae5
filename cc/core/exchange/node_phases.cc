#include "core/exchange/node_phases.h"

#include <cstring>
#include <exception>
#include <utility>

namespace tsps {

NodePhases::NodePhases(std::string folder, const Ranks& ranks, std::unique_ptr<RankFile> own,
                       std::atomic<uint64_t>& waited_ns)
    : local_rank_(static_cast<size_t>(ranks.local_rank)),
      n_parts_(static_cast<size_t>(ranks.n_parts == 0 ? ranks.local_size : ranks.n_parts)),
      peers_(std::move(folder), local_rank_, static_cast<size_t>(ranks.local_size), std::move(own),
             waited_ns) {}

Status NodePhases::Run(const std::function<Status()>& work) {
  TSPS_RETURN_IF_ERROR(broken_);
  if (!own().OwnedByThisProcess()) {
    return Error(Code::kFailedPrecondition, "a forked child is no rank of the exchange in ",
                 peers_.folder(), ". Start processes with the method `spawn` of multiprocessing");
  }
  Status status;
  try {
    status = work();
  } catch (const std::exception& error) {
    status = Error(Code::kResourceExhausted, "out of memory in operation '", call_.operation,
                   "' of step ", call_.step, ": ", error.what());
  }
  if (!status.ok()) {
    broken_ = status;
    peers_.TellFailure(status);
  }
  return status;
}

Status NodePhases::CheckCall(const MergeCall& call, size_t n_tables) const {
  if (begun_) {
    return Error(Code::kFailedPrecondition, "operation '", call_.operation, "' of step ",
                 call_.step, " was not finished before operation '", call.operation, "' of step ",
                 call.step);
  }
  if (n_tables > static_cast<size_t>(kMaxTables)) {
    return Error(Code::kInvalidArgument, "operation '", call.operation, "' of step ", call.step,
                 " has more than ", kMaxTables, " tables. Received: ", n_tables);
  }
  if (call.operation.size() >= sizeof(ExchangeCall::operation)) {
    return Error(Code::kInvalidArgument, "an operation's name has at most ",
                 sizeof(ExchangeCall::operation) - 1, " characters. Received: '", call.operation,
                 "'");
  }
  return Status();
}

Status NodePhases::Begin(const MergeCall& call, const std::vector<size_t>& dims, uint32_t reduction,
                         uint32_t rounds) {
  call_ = call;
  begun_ = true;
  TSPS_RETURN_IF_ERROR(AwaitAll(base_));
  own().live().step.store(call.step, std::memory_order_relaxed);
  ExchangeCall& announced = own().call();
  announced.step = call.step;
  announced.reduction = reduction;
  announced.rounds = rounds;
  announced.tables = static_cast<uint32_t>(dims.size());
  std::memcpy(announced.operation, call.operation.c_str(), call.operation.size() + 1);
  for (size_t t = 0; t < dims.size(); ++t) announced.dims[t] = static_cast<uint32_t>(dims[t]);
  return Status();
}

Status NodePhases::Contribute(const PartOrder& order,
                              const std::vector<Contribution>& contributions, uint32_t first,
                              uint64_t phase, Executor& executor) {
  const auto n = static_cast<uint32_t>(n_parts_);
  const size_t bytes = order.AreaBytes(contributions, first, n);
  TSPS_RETURN_IF_ERROR(own().ReserveContribution(bytes));
  order.WriteArea(contributions, first, n, own().contribution(), executor);
  own().call().contribution_bytes = bytes;
  Reach(phase);
  return Status();
}

Status NodePhases::ReadPart(const uint32_t* dims,
                            std::vector<std::vector<GradientSet>>* sets) const {
  for (const RankFile* file : peers_.all()) {
    TSPS_RETURN_IF_ERROR(file->CheckContribution(file->call().contribution_bytes));
    ReadContribution(file->contribution(), static_cast<uint32_t>(n_parts_),
                     static_cast<uint32_t>(local_rank_), dims, sets);
  }
  return Status();
}

void NodePhases::End(uint64_t phase) {
  base_ = phase;
  begun_ = false;
}

}  // namespace tsps
