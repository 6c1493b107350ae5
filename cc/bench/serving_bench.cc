// Times of lookups in serving files on one thread, beside a gather of a dense matrix by row number.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "core/base/prefetch.h"
#include "core/base/stream_copy.h"
#include "core/serving/entry_sorter.h"
#include "core/serving/serving_table.h"
#include "core/serving/serving_writer.h"

namespace tsps {
namespace {

using Files = std::vector<std::shared_ptr<const ServingFile>>;

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs the variants by turns, and prints the median processor time per id of each.
struct Turns {
  std::vector<std::string> names;
  std::vector<std::function<void(size_t batch)>> runs;

  void Add(const std::string& name, std::function<void(size_t)> run) {
    names.push_back(name);
    runs.push_back(std::move(run));
  }
  void Print(size_t ids) const {
    std::vector<std::vector<double>> times(runs.size());
    std::vector<char> other(size_t{128} << 20);  // takes the place of rows in the caches
    for (size_t turn = 0; turn < 16; ++turn) {
      for (size_t i = 0; i < runs.size(); ++i) {
        std::fill(other.begin(), other.end(), static_cast<char>(turn));
        const double start = ThreadSeconds();
        runs[i](turn * 5 + i * 3);  // two variants in turn never have the same batch
        if (turn > 1) times[i].push_back(ThreadSeconds() - start);
      }
    }
    double first = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      std::sort(times[i].begin(), times[i].end());
      const double ns = 1e9 * times[i][times[i].size() / 2] / static_cast<double>(ids);
      if (i == 0) first = ns;
      std::printf("  %-36s %7.1f ns per id  %5.2f\n", names[i].c_str(), ns, ns / first);
    }
  }
};

void FillRow(int64_t key, std::vector<float>* row) {
  for (size_t d = 0; d < row->size(); ++d) {
    (*row)[d] = static_cast<float>((key * 31 + static_cast<int64_t>(d) * 7) % 1000) * 1e-4f;
  }
}

// Writes a base or, above `older`, a layer with every n-th key.
std::shared_ptr<const ServingFile> Write(const std::string& path, ServingInfo info, int64_t rows,
                                         uint64_t every, uint64_t first, const Files* older) {
  EntrySorter sorter(info.row_code, info.dim, info.hash_seed,
                     static_cast<uint64_t>(rows) / every + 1, "/var/tmp");
  std::vector<float> row(info.dim);
  for (uint64_t x = first; x <= static_cast<uint64_t>(rows); x += every) {
    FillRow(SpreadKey(x), &row);
    Check(sorter.Add(SpreadKey(x), row.data()));
  }
  const auto quiet = [](uint64_t) { return Status(); };
  info.first_sequence = info.last_sequence = older == nullptr ? 0 : older->size() + 1;
  Check(older == nullptr ? WriteBase(path, info, sorter, quiet)
                         : WriteLayer(path, info, sorter, *older, quiet));
  auto file = ServingFile::Open(path);
  Check(file.status());
  Check((*file)->Verify());  // also brings it into the page cache
  return *file;
}

}  // namespace

void BenchServing(const BenchOptions& options) {
  const auto& [threads, n, rows, dim] = options;
  const std::string folder = "/var/tmp/tsps-serving-bench-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  SerialExecutor serial;
  std::vector<float> dense(static_cast<size_t>(rows + 1) * dim);
  std::vector<float> row(dim);
  for (int64_t x = 1; x <= rows; ++x) {
    FillRow(SpreadKey(static_cast<uint64_t>(x)), &row);
    std::copy(row.begin(), row.end(), &dense[static_cast<size_t>(x) * dim]);
  }
  std::vector<std::shared_ptr<const ServingTable>> tables;
  std::vector<std::string> names;
  ServingInfo info;
  info.dim = static_cast<uint32_t>(dim);
  info.table_uuid = std::string(32, 'a');
  info.initializer = {InitializerKind::kUniform, -0.05f, 0.05f, 7, 3};
  for (const RowCode code :
       {RowCode::kFloat32, RowCode::kBfloat16, RowCode::kFloat16, RowCode::kInt8}) {
    info.row_code = code;
    Files files = {Write(folder + "/" + RowCodeName(code), info, rows, 1, 1, nullptr)};
    auto table = ServingTable::Of(RowCodeName(code), files);
    Check(table.status());
    tables.push_back(*table);
    names.emplace_back(RowCodeName(code));
    std::printf("%s: %.3f of the bytes of float32 rows\n", RowCodeName(code),
                static_cast<double>(files[0]->header().file_bytes) /
                    (static_cast<double>(rows) * static_cast<double>(dim) * 4));
    if (code != RowCode::kFloat32) continue;
    for (size_t layer = 1; layer <= kMaxLayers; ++layer) {
      const Files older(files.begin(), files.end() - 1);
      files.insert(files.begin(), Write(folder + "/layer" + std::to_string(layer), info, rows, 100,
                                        layer * 11, &older));
      if (layer != 1 && layer != 4 && layer != 8) continue;
      auto layered = ServingTable::Of("layers", files);
      Check(layered.status());
      tables.push_back(*layered);
      names.push_back(std::to_string(layer) + " layers of 1 %");
      const double keys = static_cast<double>(files[0]->header().n_keys);
      std::printf("layer %zu: %.3f of the bytes of its rows\n", layer,
                  static_cast<double>(files[0]->header().file_bytes) /
                      (keys * static_cast<double>(dim) * 4));
    }
  }
  std::vector<float> out(n * dim);
  for (const bool zipf : {true, false}) {
    std::vector<std::vector<int64_t>> keys, numbers, absent;
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      std::mt19937_64 random(seed);
      std::vector<int64_t> number, key, no_key;
      if (zipf) key = ZipfIds(n, 1.05, rows, seed);
      for (size_t i = 0; i < n; ++i) {
        if (!zipf) {
          number.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(rows)));
          key.push_back(SpreadKey(static_cast<uint64_t>(number.back())));
        } else {
          // Inverts SpreadKey: the multiplication without its last bit.
          number.push_back(
              static_cast<int64_t>((static_cast<uint64_t>(key[i]) * 2) * 0xF1DE83E19937733DULL %
                                       static_cast<uint64_t>(rows) +
                                   1));
        }
        no_key.push_back(-key[i] - 1);
      }
      keys.push_back(key);
      numbers.push_back(number);
      absent.push_back(no_key);
    }
    std::printf("%s ids, %zu of %lld rows of %zu\n", zipf ? "Zipf" : "uniform", n,
                static_cast<long long>(rows), dim);
    const bool stream = n * dim * 4 >= kStreamedBytes;
    Turns turns;
    turns.Add("gather of a dense matrix", [&](size_t batch) {
      const auto& number = numbers[batch % 8];
      for (size_t i = 0; i < n; ++i) {
        PrefetchAhead<32>(i, n, [&](size_t next) {
          Prefetch(&dense[static_cast<size_t>(number[next]) * dim], dim * 4);
        });
        const float* const from = &dense[static_cast<size_t>(number[i]) * dim];
        if (stream) {
          StreamCopy(&out[i * dim], from, dim * 4);
        } else {
          std::copy(from, from + dim, &out[i * dim]);
        }
      }
    });
    for (size_t t = 0; t < tables.size(); ++t) {
      turns.Add(names[t], [&, t](size_t batch) {
        Check(tables[t]->Lookup(keys[batch % 8].data(), n, out.data(), serial));
      });
    }
    turns.Add("absent keys", [&](size_t batch) {
      Check(tables[0]->Lookup(absent[batch % 8].data(), n, out.data(), serial));
    });
    turns.Print(n);
  }
  static_cast<void>(threads);
  std::filesystem::remove_all(folder);
}

}  // namespace tsps
