// core_bench kernels|group|wire|cache|serving [threads=2] [ids=213000] [rows=1000000] [dim=64]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/bench.h"

int main(int argc, char** argv) {
  const std::string suite = argc > 1 ? argv[1] : "";
  tsps::BenchOptions options;
  if (argc > 2) options.threads = std::atoi(argv[2]);
  if (argc > 3) options.ids = static_cast<size_t>(std::atoll(argv[3]));
  if (argc > 4) options.rows = std::atoll(argv[4]);
  if (argc > 5) options.dim = static_cast<size_t>(std::atoll(argv[5]));
  if (suite == "kernels") {
    tsps::BenchKernels(options);
  } else if (suite == "group") {
    tsps::BenchGroup(options);
  } else if (suite == "wire") {
    tsps::BenchWire(options);
  } else if (suite == "cache") {
    tsps::BenchCache(options);
  } else if (suite == "serving") {
    tsps::BenchServing(options);
  } else {
    std::fprintf(
        stderr,
        "usage: core_bench kernels|group|wire|cache|serving [threads] [ids] [rows] [dim]\n");
    return 2;
  }
  return 0;
}
