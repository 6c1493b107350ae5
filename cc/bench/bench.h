// What the benchmark programs share: Zipf ids, timing, checks.
#ifndef TFSPS_BENCH_BENCH_H_
#define TFSPS_BENCH_BENCH_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

// Ids of real data are hashes or at least not sorted by frequency: the x-th most frequent one.
inline int64_t SpreadKey(uint64_t x) { return static_cast<int64_t>(x * 0x9E3779B97F4A7C15u >> 1); }

// Zipf by rejection (Devroye 1986, X.6.1), as numpy.random.zipf, bounded by redrawing.
inline std::vector<int64_t> ZipfIds(size_t n, double exponent, int64_t bound, uint32_t seed = 1) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  const double b = std::pow(2.0, exponent - 1);
  std::vector<int64_t> ids;
  while (ids.size() < n) {
    const double u = 1 - unit(random), v = unit(random);
    const double x = std::floor(std::pow(u, -1 / (exponent - 1)));
    if (!(x >= 1) || x > static_cast<double>(bound)) continue;
    const double t = std::pow(1 + 1 / x, exponent - 1);
    if (v * x * (t - 1) / (b - 1) <= t / b) ids.push_back(SpreadKey(static_cast<uint64_t>(x)));
  }
  return ids;
}

inline void Report(const std::string& what, const std::function<void()>& run) {
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

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

struct BenchOptions {
  int threads = 2;
  size_t ids = 213000;
  int64_t rows = 1000000;
  size_t dim = 64;
};

void BenchKernels(const BenchOptions& options);
void BenchGroup(const BenchOptions& options);
void BenchWire(const BenchOptions& options);
void BenchCache(const BenchOptions& options);
void BenchServing(const BenchOptions& options);

}  // namespace tsps

#endif  // TFSPS_BENCH_BENCH_H_
