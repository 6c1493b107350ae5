// Times of the core's batch kernels: dedupe, segment sum, merge, row updates, initial rows.
#include <cstdlib>
#include <thread>
#include <vector>

#include "bench/bench.h"
#include "core/base/crc32c.h"
#include "core/gradients/bags.h"
#include "core/gradients/dedupe.h"
#include "core/gradients/merge.h"
#include "core/gradients/segment_sum.h"
#include "core/table/initializer.h"
#include "core/table/row_updater.h"
#include "executor/eigen_executor.h"

namespace tsps {

void BenchKernels(const BenchOptions& options) {
  const auto [threads, n, rows, dim] = options;
  EigenExecutor executor(threads);

  const std::vector<int64_t> ids = ZipfIds(n, 1.05, rows);
  std::vector<int32_t> inverse(n);
  std::vector<int64_t> keys;
  std::printf("%d threads of %u processors\n", executor.threads(),
              std::thread::hardware_concurrency());
  Report("dedupe", [&] { keys = Dedupe({{ids.data(), n, inverse.data()}}); });
  std::printf("%zu Zipf(1.05) ids, %zu keys, dim %zu\n", n, keys.size(), dim);
  std::vector<int32_t> features(n);
  std::vector<IdSpan> spans;
  for (size_t i = 0, step = (n + 25) / 26; i < n; i += step) {
    spans.push_back({&ids[i], std::min(step, n - i), &features[i]});
  }
  Report("dedupe, 26 features", [&] { keys = Dedupe(spans); });
  Report("dedupe, 4096 ids",
         [&] { Dedupe({{ids.data(), std::min<size_t>(n, 4096), features.data()}}); });

  keys = Dedupe({{ids.data(), n, inverse.data()}});
  const std::vector<float> gradients(n * dim, 0.01f);
  std::vector<float> sums(keys.size() * dim);
  Report("segment sum", [&] {
    Check(SegmentSum({{gradients.data(), inverse.data(), n}}, keys.size(), dim, sums.data(),
                     executor));
  });

  MergedGradients merged;
  const std::vector<GradientSet> sets = {{ids.data(), nullptr, gradients.data(), n}};
  Report("merge keys, as from two ranks",
         [&] { Check(MergeKeys(sets, Reduction::kFrequency, &merged)); });
  Report("merge rows", [&] {
    Check(MergeRows(sets, dim, merged, Reduction::kFrequency, 2, sums.data(), executor));
  });
  Report("find non-finite rows", [&] {
    if (FirstNonFiniteRow(gradients.data(), n, dim, executor) >= 0) std::abort();
  });

  std::vector<int64_t> splits;
  for (size_t i = 0; i < n; i += 10) splits.push_back(static_cast<int64_t>(i));
  splits.push_back(static_cast<int64_t>(n));
  const BagSpan bags = {inverse.data(), splits.data(), splits.size() - 1, nullptr, Combiner::kMean};
  std::vector<const float*> row_pointers;
  for (size_t k = 0; k < keys.size(); ++k) row_pointers.push_back(&gradients[k * dim]);
  std::vector<float> pooled(bags.n_bags * dim);
  Report("pool bags of 10",
         [&] { PoolBags(bags, row_pointers.data(), dim, pooled.data(), executor); });
  Report("pool bags of 10, backward", [&] {
    Check(PooledSegmentSum({{bags, pooled.data()}}, keys.size(), dim, sums.data(), executor));
  });

  std::vector<float> table(keys.size() * dim), slots(2 * keys.size() * dim, 0.1f);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kAdam}) {
    const float adam[] = {0.001f, 0.9f, 0.999f, 1e-7f, 7};
    const float adagrad[] = {0.001f, 1e-7f};
    const RowUpdater updater(kind, dim, kind == OptimizerKind::kAdam ? adam : adagrad,
                             static_cast<size_t>(HyperCount(kind)));
    Report(std::string("update every key's row, ") + OptimizerKindName(kind), [&] {
      executor.ParallelFor(keys.size(), 256, [&](size_t begin, size_t end) {
        for (size_t k = begin; k < end; ++k) {
          float* const row_slots[] = {&slots[2 * k * dim], &slots[(2 * k + 1) * dim]};
          updater.Update(&sums[k * dim], &table[k * dim], row_slots);
        }
      });
    });
  }
  for (InitializerKind kind : {InitializerKind::kUniform, InitializerKind::kTruncatedNormal}) {
    const InitializerConfig config = {kind, 0.0f, 0.05f, 1, 2};
    Report(std::string("initial row of every key, ") + InitializerKindName(kind), [&] {
      executor.ParallelFor(keys.size(), 256, [&](size_t begin, size_t end) {
        for (size_t k = begin; k < end; ++k) InitialRow(config, keys[k], dim, &table[k * dim]);
      });
    });
  }
  Report("crc32c of the gradients, one thread", [&] {
    if (Crc32c(0, gradients.data(), gradients.size() * sizeof(float)) == 1) std::abort();
  });
}

}  // namespace tsps
