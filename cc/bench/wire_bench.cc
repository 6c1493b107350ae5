// Times and sizes of sparse gradients on the wire.
#include <random>
#include <thread>
#include <vector>

#include "bench/bench.h"
#include "core/gradients/dedupe.h"
#include "core/gradients/merge.h"
#include "core/gradients/sort_keys.h"
#include "core/wire/bit_blocks.h"
#include "core/wire/wire.h"
#include "executor/eigen_executor.h"

namespace tsps {
namespace {

constexpr int kRanks = 4;  // of a node

// What SpreadKey was given, which is small. Its multiplication has an inverse; of the bit that it
// shifts out, one value gives a small number.
int64_t PlainKey(int64_t spread) {
  const uint64_t low = static_cast<uint64_t>(spread) << 1;
  return static_cast<int64_t>(std::min(low * 0xF1DE83E19937733Du, (low | 1) * 0xF1DE83E19937733Du));
}

// The keys of a node's ranks, each rank's with its quarter of the ids, merged.
MergedGradients NodeKeys(const std::vector<int64_t>& ids) {
  std::vector<int64_t> keys;
  for (size_t i = 0, share = (ids.size() + kRanks - 1) / kRanks; i < ids.size(); i += share) {
    const size_t n = std::min(share, ids.size() - i);
    std::vector<int32_t> inverse(n);
    const std::vector<int64_t> own = Dedupe({{&ids[i], n, inverse.data()}});
    keys.insert(keys.end(), own.begin(), own.end());
  }
  MergedGradients merged;
  Check(MergeKeys({{keys.data(), nullptr, nullptr, keys.size()}}, Reduction::kSum, &merged));
  return merged;
}

template <typename T>
T Checked(Result<T> result) {
  Check(result.status());
  return std::move(*result);
}

// The peer of bit blocks: 7 bits to a byte, the eighth says that more follow.
void AppendLeb128(const std::vector<uint64_t>& numbers, std::vector<uint8_t>* out) {
  for (uint64_t x : numbers) {
    for (; x >= 128; x >>= 7) out->push_back(static_cast<uint8_t>(x | 128));
    out->push_back(static_cast<uint8_t>(x));
  }
}

void ReadLeb128(const uint8_t* code, std::vector<uint64_t>* numbers) {
  for (uint64_t& x : *numbers) {
    x = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = *code++;
      x |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) break;
    }
  }
}

void BenchKeys(const std::string& name, const std::vector<int64_t>& keys) {
  const size_t n = keys.size();
  std::unique_ptr<KeyPosition[]> sorted;
  Report(name + ": sort", [&] { sorted = SortKeys(keys.data(), n); });
  Report(name + ": std::sort", [&] {
    std::vector<KeyPosition> pairs(n);
    for (size_t i = 0; i < n; ++i) pairs[i] = {keys[i], static_cast<uint32_t>(i)};
    std::sort(pairs.begin(), pairs.end(),
              [](const KeyPosition& a, const KeyPosition& b) { return a.key < b.key; });
  });

  std::vector<uint64_t> differences;
  for (size_t i = 1; i < n; ++i) {
    differences.push_back(static_cast<uint64_t>(sorted[i].key) -
                          static_cast<uint64_t>(sorted[i - 1].key) - 1);
  }
  std::vector<uint8_t> code;
  const auto print_size = [&] {
    std::printf("%.2f bytes per key\n", static_cast<double>(code.size()) / static_cast<double>(n));
  };
  Report(name + ": write bit blocks", [&] {
    code.clear();
    AppendBitBlocks(differences.data(), n - 1, &code);
  });
  Report(name + ": read bit blocks", [&] {
    BitBlockReader reader(code.data(), n - 1);
    for (size_t i = 0; const size_t read = reader.Next(&differences[i]);) i += read;
  });
  print_size();
  Report(name + ": write LEB128", [&] {
    code.clear();
    AppendLeb128(differences, &code);
  });
  Report(name + ": read LEB128", [&] { ReadLeb128(code.data(), &differences); });
  print_size();
}

}  // namespace

void BenchWire(const BenchOptions& options) {
  const auto [threads, n_ids, rows, dim] = options;
  EigenExecutor executor(threads);
  const std::vector<int64_t> ids = ZipfIds(n_ids, 1.05, rows);
  const MergedGradients merged = NodeKeys(ids);
  const size_t n = merged.keys.size();
  std::printf("%d threads of %u processors; %zu keys of %zu Zipf(1.05) ids on %d ranks, dim %zu\n",
              executor.threads(), std::thread::hardware_concurrency(), n, n_ids, kRanks, dim);

  BenchKeys("hashed ids", merged.keys);
  std::vector<int64_t> keys;
  for (const int64_t key : merged.keys) keys.push_back(PlainKey(key));
  BenchKeys("plain ids", keys);
  std::mt19937_64 random(1);
  for (int64_t& key : keys) key = static_cast<int64_t>(random());
  BenchKeys("any int64", keys);

  std::vector<float> gradients(n * dim), read_rows(n * dim);
  std::normal_distribution<float> normal(0, 0.01f);
  for (float& x : gradients) x = normal(random);
  std::vector<int64_t> read_keys(n);
  std::vector<int32_t> read_counts(n);
  const WireSet set = {merged.keys.data(), merged.counts.data(), gradients.data(), n, dim};
  for (const WireType type : {WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16}) {
    const std::string name = WireTypeName(type);
    const auto packer = Checked(WirePacker::Create({set}, type, executor));
    std::vector<uint8_t> buffer(PaddedBytes(packer.bytes()));
    Report(name + ": sort and code", [&] { Checked(WirePacker::Create({set}, type, executor)); });
    Report(name + ": write", [&] { packer.Write(buffer.data(), buffer.size(), executor); });
    const auto open = [&] { return Checked(WireReader::Open(buffer.data(), buffer.size())); };
    Report(name + ": open, read keys and counts", [&] {
      const WireReader reader = open();
      Check(reader.Keys(0, read_keys.data()));
      Check(reader.Counts(0, read_counts.data()));
    });
    const WireReader reader = open();
    Report(name + ": read rows", [&] { reader.Rows(0, read_rows.data(), executor); });
    const auto per_row = [n = n](size_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(n);
    };
    std::printf("%s: %.2f bytes per row, %.2f of them not the row's; %.2f with padding\n",
                name.c_str(), per_row(packer.bytes()),
                per_row(packer.bytes()) - static_cast<double>(dim * WireTypeBytes(type)),
                per_row(buffer.size()));
  }
}

}  // namespace tsps
