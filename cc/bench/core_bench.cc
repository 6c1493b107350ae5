// Times of the core's batch kernels: dedupe, segment sum, merge, row updates, initial rows.
//
//   core_bench [threads=2] [ids=213000] [rows=1000000] [dim=64]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/crc32c.h"
#include "core/dedupe.h"
#include "core/initializer.h"
#include "core/merge.h"
#include "core/row_optimizer.h"
#include "core/segment_sum.h"
#include "executor/eigen_executor.h"

namespace {

// Zipf by rejection (Devroye 1986, X.6.1), as numpy.random.zipf, bounded by redrawing.
std::vector<int64_t> ZipfIds(size_t n, double exponent, int64_t bound) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  const double b = std::pow(2.0, exponent - 1);
  std::vector<int64_t> ids;
  while (ids.size() < n) {
    const double u = 1 - unit(random), v = unit(random);
    const double x = std::floor(std::pow(u, -1 / (exponent - 1)));
    if (!(x >= 1) || x > static_cast<double>(bound)) continue;
    const double t = std::pow(1 + 1 / x, exponent - 1);
    // Spread over the key space: ids of real data are hashes or at least not sorted by frequency.
    if (v * x * (t - 1) / (b - 1) <= t / b) {
      ids.push_back(static_cast<int64_t>(static_cast<uint64_t>(x) * 0x9E3779B97F4A7C15u >> 1));
    }
  }
  return ids;
}

void Report(const std::string& what, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (i > 0) times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-44s %8.3f ms median %8.3f best\n", what.c_str(), times[times.size() / 2],
              times[0]);
}

void Check(const tsps::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

int Argument(int argc, char** argv, int index, int otherwise) {
  return argc > index ? std::atoi(argv[index]) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tsps;  // NOLINT: a program, not a header
  const int threads = Argument(argc, argv, 1, 2);
  const size_t n = Argument(argc, argv, 2, 213000);
  const int64_t rows = Argument(argc, argv, 3, 1000000);
  const size_t dim = Argument(argc, argv, 4, 64);
  EigenExecutor executor(threads);

  const std::vector<int64_t> ids = ZipfIds(n, 1.05, rows);
  std::vector<int32_t> inverse(n);
  std::vector<int64_t> keys;
  std::printf("%d threads of %u processors\n", executor.threads(),
              std::thread::hardware_concurrency());
  Report("dedupe", [&] { keys = Dedupe({{ids.data(), n, inverse.data()}}, executor); });
  std::printf("%zu Zipf(1.05) ids, %zu keys, dim %zu\n", n, keys.size(), dim);
  std::vector<int32_t> features(n);
  std::vector<IdSpan> spans;
  for (size_t i = 0, step = (n + 25) / 26; i < n; i += step) {
    spans.push_back({&ids[i], std::min(step, n - i), &features[i]});
  }
  Report("dedupe, 26 features", [&] { keys = Dedupe(spans, executor); });
  Report("dedupe, 4096 ids",
         [&] { Dedupe({{ids.data(), std::min<size_t>(n, 4096), features.data()}}, executor); });

  keys = Dedupe({{ids.data(), n, inverse.data()}}, executor);
  const std::vector<float> gradients(n * dim, 0.01f);
  std::vector<float> sums(keys.size() * dim);
  Report("segment sum", [&] {
    Check(SegmentSum({{gradients.data(), inverse.data(), n}}, keys.size(), dim, sums.data(),
                     executor));
  });

  MergedGradients merged;
  std::vector<int32_t> merged_inverse(n);
  Report("merge keys, as from two ranks", [&] {
    Check(MergeKeys(ids.data(), nullptr, n, Reduction::kFrequency, merged_inverse.data(), &merged,
                    executor));
  });
  Report("merge rows", [&] {
    Check(MergeRows(gradients.data(), merged_inverse.data(), n, dim, merged, Reduction::kFrequency,
                    2, sums.data(), executor));
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
    const RowUpdater updater(kind, dim, kind == OptimizerKind::kAdam ? adam : adagrad);
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
