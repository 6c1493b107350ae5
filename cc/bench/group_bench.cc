// Times of a group's steps and lookups: one table, filled, then Adagrad steps on Zipf keys.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "core/gradients/dedupe.h"
#include "core/group/group.h"
#include "executor/eigen_executor.h"

namespace tsps {

void BenchGroup(const BenchOptions& options) {
  const auto& [threads, n, rows, dim] = options;
  EigenExecutor executor(threads);
  const std::string path = "/dev/shm/tsps-bench-" + std::to_string(getpid());
  {
    auto group = Group::Create(path, std::string(32, 'a'));
    Check(group.status());
    auto writer = (*group)->OpenWriter();
    Check(writer.status());
    TableConfig config;
    config.name = "t";
    config.uuid = std::string(32, 'b');
    config.dim = static_cast<int64_t>(dim);
    Check((*writer)->CreateTable(config).status());
    Check((*writer)->BindOptimizer(0, {OptimizerKind::kAdagrad, {0.1f}}, false));

    std::vector<std::vector<int64_t>> batches;
    for (uint32_t seed = 1; seed <= 4; ++seed) batches.push_back(ZipfIds(n, 1.05, rows, seed));
    constexpr size_t kFill = 1 << 16;
    const std::vector<float> zeros(kFill * dim);
    std::vector<int64_t> keys;
    for (int64_t x = 1; x <= rows; ++x) {
      keys.push_back(SpreadKey(static_cast<uint64_t>(x)));
      if (keys.size() == kFill || x == rows) {
        Check((*writer)->Assign(0, keys.data(), zeros.data(), nullptr, keys.size(), executor));
        keys.clear();
      }
    }
    const std::vector<float> gradients(n * dim, 0.01f);
    const float hyper[] = {0.01f, 1e-7f};
    size_t turn = 0;
    std::vector<std::vector<int64_t>> unique;
    std::vector<int32_t> inverse(n);
    for (const auto& ids : batches) unique.push_back(Dedupe({{ids.data(), n, inverse.data()}}));
    std::printf("%d threads, %zu keys of %lld rows, dim %zu\n", threads, unique[0].size(),
                static_cast<long long>(rows), dim);
    std::vector<const char*> found(n);
    Report("find", [&] {
      const auto& now = unique[turn++ % unique.size()];
      Check((*group)->Read([&](const ReadView& view) {
        executor.ParallelFor(now.size(), 2048, [&](size_t begin, size_t end) {
          view.Find(0, now.data() + begin, end - begin, found.data() + begin);
        });
        return Status();
      }));
    });
    Report("step, Adagrad", [&] {
      const auto& now = unique[turn++ % unique.size()];
      Check((*writer)->ApplyStep((*group)->step() + 1,
                                 {{0, now.data(), gradients.data(), now.size(), hyper, 2}},
                                 executor));
    });
    std::printf("longest odd sequence %.1f ms\n",
                static_cast<double>((*group)->counters().publish_ns_max.load()) / 1e6);
  }
  std::filesystem::remove_all(path);
}

}  // namespace tsps
