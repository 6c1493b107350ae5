// A step of the tables, as ops pass it: its updates, and the verdict on it.
//
// A step is prepared first, which does everything that can fail. After the verdict it is made or
// dropped. The verdict is a value, a uint8 vector, so that a rank can finish the work for which
// others wait before it raises an error, and all ranks raise the same error (TspsCheckStep).
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

// Encodes a verdict: one byte with its code and, unless it is OK, its text and a zero. Several
// verdicts follow each other without gaps.
std::vector<uint8_t> EncodeVerdict(const Status& verdict);
// Decodes verdicts and statements, and returns the first objection; else RanksDiffer if digests
// differ; else the first verdict that is not OK; else OK. InvalidArgument: `bytes` are not
// verdicts.
Status DecodeVerdicts(const uint8_t* bytes, size_t n);
// Encodes a rank's statement about a step, in addition to its verdict: a digest of everything that
// must be equal on all ranks, and the reason why it cannot make the step.
std::vector<uint8_t> EncodeStatement(uint64_t digest, const Status& objection);

// The updates of a step. Owns all data that a prepared step points to.
class StepUpdates {
 public:
  // Reads the inputs paths T and uuids T from `paths` on, and hyper T from `hyper` on, followed by
  // `optimizer`: its id, and the number of its steps including this one. InvalidArgument: a table
  // is not of `owner`.
  Status Read(const KernelContext& context, int paths, int hyper, int n_tables,
              const OpenGroup& owner, TableCache* cache);
  // InvalidArgument unless `dim` is the dim of the table.
  Status CheckDim(size_t table, size_t dim) const;
  // Reads the inputs from `first` on: paths T, uuids T, keys T, grads T and, `with_counts`, counts
  // T (int32[n] or int32[0], as GradientInputs), hyper T, optimizer.
  Status ReadAll(const KernelContext& context, int first, int n_tables, bool with_counts,
                 const OpenGroup& owner, TableCache* cache);
  // Takes over the gradients that an exchange has reduced. The rows of the last round stay in
  // shared memory, where they are valid until this process begins another merge.
  Status TakeReduced(std::vector<ReducedGradients>* reduced);
  // Adds rows that are set in the same step. Give the data that they point to to `Hold`.
  void AddWrites(TableWrites writes) { writes_.push_back(std::move(writes)); }
  void Hold(Tensor tensor) { held_.push_back(std::move(tensor)); }
  const void* Hold(StoredRows rows) {
    return stored_.emplace_back(std::make_unique<StoredRows>(std::move(rows)))->data();
  }
  Status Prepare(GroupWriter& writer, int64_t step);

 private:
  // Adds the counts of the next keys of a table.
  void AddCounts(size_t table, const int32_t* counts, size_t n);
  // Passes the occurrences of the keys of tables that count them to the updates. Internal: some
  // keys of a table have occurrences, and others have none.
  Status SetOccurrences();

  TableCache::Tables tables_;
  std::vector<Tensor> held_;  // the buffers that `updates_` point to
  std::vector<std::unique_ptr<StoredRows>> stored_;
  std::vector<std::vector<int64_t>> keys_;
  std::vector<std::vector<uint32_t>> occurrences_;  // [table]; empty: they are not counted
  std::vector<ReducedGradients> reduced_;
  std::vector<TableUpdate> updates_;
  OptimizerUse optimizer_;
  std::vector<TableWrites> writes_;
  std::shared_ptr<Executor> executor_;
};

// Makes a step on the leader of a job with one node: prepares it, posts the verdict to the other
// ranks through `exchange` (null: there are none), sets it as output 0, and publishes the step. An
// error of `prepare` becomes the verdict, not an error of this function. Calls `report` when the
// verdict is certain, before it publishes.
Status MakeStep(const KernelContext& context, const ReportDone& report, int64_t step,
                OpenGroup& owner, NodeExchange* exchange,
                const std::function<Status(GroupWriter&)>& prepare);
// Waits on the other ranks of the node for that verdict, and sets it as output 0.
Status OutputLeadersVerdict(const KernelContext& context, NodeExchange& exchange,
                            const MergeCall& call);

}  // namespace tsps

#endif  // TFSPS_KERNELS_STEP_H_
