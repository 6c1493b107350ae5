// A step of the tables, as ops pass it: what it is made of, and the verdict on it.
//
// A step is prepared by everything that can fail, judged, and then made or dropped. The verdict is
// a value, a uint8 vector, so that every rank can finish what others wait for before it raises an
// error, and all ranks raise the same one (TspsCheckStep).
#ifndef TFSPS_KERNELS_STEP_H_
#define TFSPS_KERNELS_STEP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/executor.h"
#include "core/exchange/node_exchange.h"
#include "core/group/group.h"
#include "core/table/table_config.h"
#include "kernels/group_registry.h"
#include "kernels/tensors.h"
#include "kernels/waiters.h"

namespace tsps {

// Verdicts are written one after another: each its code, one byte, and unless that is OK its text
// and a zero.
std::vector<uint8_t> EncodeVerdict(const Status& verdict);
// The first one that is not OK. InvalidArgument when `bytes` are no verdicts. Statements may be
// among them: an objection goes before all, and then that digests differ.
Status DecodeVerdicts(const uint8_t* bytes, size_t n);
// What a rank says of a step beside its verdict: a digest of what must be equal on all ranks, and
// why it cannot make the step.
std::vector<uint8_t> EncodeStatement(uint64_t digest, const Status& objection);

// What a step is made of. Holds all that a prepared step points to.
class StepUpdates {
 public:
  // Inputs: paths T and uuids T from `paths` on, hyper T from `hyper` on, then `optimizer`, its id
  // and how many steps it has made with this one. The tables are of `owner`.
  Status Read(const KernelContext& context, int paths, int hyper, int n_tables,
              const OpenGroup& owner, TableCache* cache);
  // InvalidArgument unless `dim` is the table's.
  Status CheckDim(size_t table, size_t dim) const;
  // Inputs from `first` on: paths T, uuids T, keys T, grads T, hyper T, optimizer.
  Status ReadAll(const KernelContext& context, int first, int n_tables, const OpenGroup& owner,
                 TableCache* cache);
  // What an exchange has reduced. `reduced` is taken over; the last round's rows stay where they
  // lie, which is until this process begins another merge.
  Status TakeReduced(std::vector<ReducedGradients>* reduced);
  // Rows that are set in the same step; `Hold` what they point to.
  void AddWrites(TableWrites writes) { writes_.push_back(std::move(writes)); }
  void Hold(Tensor tensor) { held_.push_back(std::move(tensor)); }
  const void* Hold(StoredRows rows) {
    return stored_.emplace_back(std::make_unique<StoredRows>(std::move(rows)))->data();
  }
  Status Prepare(GroupWriter& writer, int64_t step);

 private:
  TableCache::Tables tables_;
  std::vector<Tensor> held_;  // the buffers that `updates_` point to
  std::vector<std::unique_ptr<StoredRows>> stored_;
  std::vector<std::vector<int64_t>> keys_;
  std::vector<ReducedGradients> reduced_;
  std::vector<TableUpdate> updates_;
  OptimizerUse optimizer_;
  std::vector<TableWrites> writes_;
  std::shared_ptr<Executor> executor_;
};

// On the leader of a job's only node: prepares a step, lets the other ranks have the verdict
// through `exchange` (null: there are none), sets it as output 0, and makes the step. An error of
// `prepare` is a verdict, not an error of this. Once the verdict is that the step will be made, it
// is reported as done.
Status MakeStep(const KernelContext& context, const ReportDone& report, int64_t step,
                OpenGroup& owner, NodeExchange* exchange,
                const std::function<Status(GroupWriter&)>& prepare);
// On the node's other ranks: waits for that verdict, and sets it as output 0.
Status OutputLeadersVerdict(const KernelContext& context, NodeExchange& exchange,
                            const MergeCall& call);

}  // namespace tsps

#endif  // TFSPS_KERNELS_STEP_H_
