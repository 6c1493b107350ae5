#include "kernels/gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/process.h"

namespace tsps {

Status GradientInputs::Read(const KernelContext& context, int n_tables, bool with_counts) {
  for (int t = 0; t < n_tables; ++t) {
    TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(t));
    TSPS_ASSIGN_OR_RETURN(Tensor grads, context.Input(n_tables + t, 2, "grads"));
    bool fits = grads.dim(0) == keys.dim(0);
    std::string counts_text;
    GradientSet set = {keys.data<int64_t>(), nullptr, grads.data<float>(), keys.size()};
    if (with_counts) {
      TSPS_ASSIGN_OR_RETURN(Tensor counts, context.Input(2 * n_tables + t, 1, "counts"));
      fits = fits && (counts.size() == 0 || counts.dim(0) == keys.dim(0));
      counts_text = ", counts of shape " + ShapeString(counts.shape());
      if (counts.size() > 0) set.counts = counts.data<int32_t>();
      held.push_back(std::move(counts));
    }
    if (!fits) {
      return Error(Code::kInvalidArgument, "table ", t, " has ", keys.size(),
                   " keys; expected as many grads", with_counts ? " and counts" : "",
                   ". Received: grads of shape ", ShapeString(grads.shape()), counts_text);
    }
    tables.push_back({static_cast<size_t>(grads.dim(1)), {set}});
    held.push_back(std::move(keys));
    held.push_back(std::move(grads));
  }
  return Status();
}

Status MergeIntoOutputs(const KernelContext& context, const std::vector<TableSets>& tables,
                        Reduction reduction, int32_t world_size, Executor& executor) {
  std::vector<size_t> sizes(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    for (const GradientSet& set : tables[t].sets) sizes[t] += set.n;
  }
  std::vector<MergedGradients> merged(tables.size());
  std::vector<Status> statuses(tables.size());
  ForEachItem(sizes, executor,
              [&](size_t t) { statuses[t] = MergeKeys(tables[t].sets, reduction, &merged[t]); });
  TSPS_RETURN_IF_ERROR(FirstError(statuses));
  const int n_tables = static_cast<int>(tables.size());
  std::vector<Tensor> reduced;
  for (int t = 0; t < n_tables; ++t) {
    const MergedGradients& table = merged[static_cast<size_t>(t)];
    TSPS_RETURN_IF_ERROR(context.OutputVector(t, table.keys));
    TSPS_RETURN_IF_ERROR(context.OutputVector(2 * n_tables + t, table.counts));
    TSPS_ASSIGN_OR_RETURN(
        Tensor rows, context.Output<float>(
                         n_tables + t, {static_cast<int64_t>(table.keys.size()),
                                        static_cast<int64_t>(tables[static_cast<size_t>(t)].dim)}));
    reduced.push_back(std::move(rows));
  }
  ForEachItem(sizes, executor, [&](size_t t) {
    statuses[t] = MergeRows(tables[t].sets, tables[t].dim, merged[t], reduction, world_size,
                            reduced[t].data<float>(), executor);
  });
  return FirstError(statuses);
}

Status WriteReducedOutputs(const KernelContext& context, std::vector<ReducedGradients>* tables,
                           Executor& executor) {
  const int n_tables = static_cast<int>(tables->size());
  for (int t = 0; t < n_tables; ++t) {
    ReducedGradients& reduced = (*tables)[static_cast<size_t>(t)];
    const auto n = static_cast<int64_t>(reduced.n());
    const size_t dim = reduced.dim();
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Output<int64_t>(t, {n}));
    TSPS_ASSIGN_OR_RETURN(const Tensor grads,
                          context.Output<float>(n_tables + t, {n, static_cast<int64_t>(dim)}));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts, context.Output<int32_t>(2 * n_tables + t, {n}));
    size_t at = 0;
    for (size_t i = 0; i < reduced.sets().size(); ++i) {
      const GradientSet& set = reduced.sets()[i];
      std::copy_n(set.keys, set.n, keys.data<int64_t>() + at);
      std::copy_n(set.counts, set.n, counts.data<int32_t>() + at);
      float* const to = grads.data<float>() + at * dim;
      executor.ParallelFor(set.n * dim, 1 << 16, [&](size_t begin, size_t end) {
        std::copy(set.rows + begin, set.rows + end, to + begin);
      });
      at += set.n;
      reduced.Drop(i);  // saves memory: the gradients and the outputs never both exist in whole
    }
  }
  return Status();
}

Status PackIntoOutput(const KernelContext& context, int index, const std::vector<WireSet>& sets,
                      WireType type, Executor& executor) {
  TSPS_ASSIGN_OR_RETURN(const WirePacker packer, WirePacker::Create(sets, type, executor));
  const size_t size = PaddedBytes(packer.bytes());
  TSPS_ASSIGN_OR_RETURN(const Tensor buffer,
                        context.Output<uint8_t>(index, {static_cast<int64_t>(size)}));
  packer.Write(buffer.data<uint8_t>(), size, executor);
  ProcessWireCounters().bytes_packed.fetch_add(size, std::memory_order_relaxed);
  return Status();
}

Status PackForEach(const KernelContext& context, int index, uint32_t receivers,
                   const std::function<std::vector<WireSet>(uint32_t receiver)>& sets_of,
                   WireType type, Executor& executor) {
  std::vector<WirePacker> packers;
  std::vector<int32_t> splits;
  int64_t size = 0;
  for (uint32_t receiver = 0; receiver < receivers; ++receiver) {
    TSPS_ASSIGN_OR_RETURN(WirePacker packer, WirePacker::Create(sets_of(receiver), type, executor));
    const size_t bytes = PaddedBytes(packer.bytes(), receivers);
    if (bytes > INT32_MAX) {
      return Error(
          Code::kResourceExhausted, "node ", receiver, " would receive ", bytes,
          " bytes at once. At most 2^31 - 1 can be sent, so nothing was sent. Make batches "
          "smaller");
    }
    splits.push_back(static_cast<int32_t>(bytes));
    size += splits.back();
    packers.push_back(std::move(packer));
  }
  TSPS_ASSIGN_OR_RETURN(const Tensor buffer, context.Output<uint8_t>(index, {size}));
  uint8_t* out = buffer.data<uint8_t>();
  for (uint32_t receiver = 0; receiver < receivers; ++receiver) {
    const auto bytes = static_cast<size_t>(splits[receiver]);
    packers[receiver].Write(out, bytes, executor);
    out += bytes;
  }
  ProcessWireCounters().bytes_packed.fetch_add(static_cast<uint64_t>(size),
                                               std::memory_order_relaxed);
  return context.OutputVector(index + 1, splits);
}

Status PackNothing(const KernelContext& context, int index, uint32_t receivers) {
  TSPS_RETURN_IF_ERROR(context.Output<uint8_t>(index, {0}).status());
  return context.OutputVector(index + 1, std::vector<int32_t>(receivers, 0));
}

}  // namespace tsps
