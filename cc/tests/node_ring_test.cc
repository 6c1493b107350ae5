// Merges among several nodes: the rounds of NodeExchange, and the wire format between the nodes.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "core/exchange/node_ranks.h"
#include "core/wire/wire_buffers.h"
#include "executor/eigen_executor.h"
#include "tests/node_exchange_fixture.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

// An allgather among the ranks that merge one range of keys, one rank of each node.
class Allgather {
 public:
  explicit Allgather(size_t senders) : senders_(senders) {}
  std::vector<uint8_t> Run(size_t sender, const std::vector<uint8_t>& buffer) {
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t round = next_[sender]++;
    sent_[round][sender] = buffer;
    wake_.notify_all();
    wake_.wait(lock, [&] { return sent_[round].size() == senders_; });
    std::vector<uint8_t> gathered;
    for (const auto& entry : sent_[round])
      gathered.insert(gathered.end(), entry.second.begin(), entry.second.end());
    return gathered;
  }

 private:
  const size_t senders_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<size_t, size_t> next_;                                  // by sender
  std::map<size_t, std::map<size_t, std::vector<uint8_t>>> sent_;  // by round and sender
};

std::vector<uint8_t> Pack(const std::vector<GradientSet>& sets, Executor& executor) {
  std::vector<WireSet> wire;
  for (size_t t = 0; t < sets.size(); ++t) {
    wire.push_back({sets[t].keys, sets[t].counts, sets[t].rows, sets[t].n, t + 3});
  }
  auto packer = WirePacker::Create(wire, WireType::kFloat32, executor);
  EXPECT_TRUE(packer.ok()) << packer.status().message();
  std::vector<uint8_t> buffer(PaddedBytes(packer->bytes()));
  packer->Write(buffer.data(), buffer.size(), executor);
  return buffer;
}

MergeCall Call() {
  MergeCall call;
  call.operation = "ring";
  call.step = 3;
  call.reduction = Reduction::kFrequency;
  call.timeout_s = 20;
  return call;
}

struct Cluster {
  explicit Cluster(const std::vector<int>& sizes, size_t window = 1 << 20)
      : sizes(sizes), window(window) {}

  const std::vector<int> sizes;  // ranks of each node
  const size_t window;
  TempDir folder;
  std::vector<std::vector<std::unique_ptr<NodeExchange>>> nodes;

  int Mergers() const { return *std::min_element(sizes.begin(), sizes.end()); }
  void Join() {
    int64_t rank = 0;
    for (size_t n = 0; n < sizes.size(); ++n) {
      const std::string path = folder / std::to_string(n);
      std::filesystem::create_directory(path);
      nodes.emplace_back();
      for (int r = 0; r < sizes[n]; ++r) {
        auto joined = NodeExchange::Create(path, {r, sizes[n], rank++, Mergers(), window});
        ASSERT_TRUE(joined.ok()) << joined.status().message();
        nodes.back().push_back(std::move(*joined));
      }
    }
  }
};

// One step of a rank, in the order of the graph: merging is ahead of sending.
void Step(NodeExchange& rank, size_t node, Allgather& ring, const RankGradients& gradients,
          uint32_t rounds, const NodeExchange::Use& use) {
  EigenExecutor executor(2);
  const std::vector<Contribution> tables = gradients.Tables();
  const auto check = [](const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); };
  check(rank.Begin(Call(), tables, rounds, executor));
  std::vector<std::vector<uint8_t>> gathered(rounds);
  std::vector<GradientSet> sums;
  WireBuffers received;
  const auto put = [&](uint32_t round) {
    check(received.Unpack(gathered[round].data(), gathered[round].size(), tables.size(),
                          /*splits=*/1, executor));
    check(rank.Put(round, received.tables(), executor));
  };
  for (uint32_t round = 0; round < rounds; ++round) {
    check(rank.Take(round, tables, executor, &sums));
    if (!rank.Merges()) continue;
    const std::vector<uint8_t> packed = Pack(sums, executor);
    if (round >= 2) put(round - 2);
    gathered[round] = ring.Run(node, packed);
  }
  if (rank.Merges()) {
    if (rounds >= 2) put(rounds - 2);
    put(rounds - 1);
  }
  check(rank.Finish(use));
}

void ExpectNodesAgree(Cluster* cluster, const std::vector<size_t>& rows, uint32_t least_rounds) {
  cluster->Join();
  const std::vector<int>& sizes = cluster->sizes;
  for (uint64_t step = 0; step < 6; ++step) {
    std::vector<RankGradients> gradients;
    uint32_t rounds = 1;
    for (const int size : sizes) {
      for (int r = 0; r < size; ++r) {
        // One rank has nothing in some steps.
        const bool is_empty = step % 3 == 1 && gradients.empty();
        gradients.push_back(Draw(step * 100 + gradients.size(),
                                 is_empty ? std::vector<size_t>(rows.size(), 0) : rows));
        size_t bytes = 0;
        for (const Contribution& table : gradients.back().Tables()) {
          bytes += table.n * NodeExchange::RowBytes(table.dim, table.counts != nullptr);
        }
        // Multiples of 1/8 have the same sum in any order.
        for (auto& table : gradients.back().rows) {
          for (float& x : table) x = static_cast<float>(static_cast<int>(x * 8)) / 8;
        }
        rounds = std::max(
            rounds, NodeExchange::RoundsFor(bytes, cluster->window, static_cast<size_t>(size)));
      }
    }
    EXPECT_GE(rounds, least_rounds);
    std::vector<Read> reads(sizes.size());
    std::vector<std::unique_ptr<Allgather>> ring_of;
    for (int r = 0; r < cluster->Mergers(); ++r) {
      ring_of.push_back(std::make_unique<Allgather>(sizes.size()));
    }
    std::vector<std::thread> threads;
    size_t rank = 0;
    for (size_t n = 0; n < sizes.size(); ++n) {
      for (size_t r = 0; r < static_cast<size_t>(sizes[n]); ++r, ++rank) {
        threads.emplace_back([&, n, r, rank] {
          Step(*cluster->nodes[n][r], n, *ring_of[std::min(r, ring_of.size() - 1)], gradients[rank],
               rounds, reads[n].Reader());
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (const Read& read : reads) {
      ASSERT_EQ(read.keys.size(), rows.size());
      EXPECT_EQ(read.keys, reads[0].keys);
      EXPECT_EQ(read.counts, reads[0].counts);
      EXPECT_EQ(read.rows, reads[0].rows);
    }
    ExpectMergedLikeOneList(gradients, reads[0]);
  }
}

TEST(NodeRingTest, NodesMergeTheirRangesWithEachOther) {
  Cluster cluster({2, 2});
  ExpectNodesAgree(&cluster, {300, 0, 2000}, 1);
}

TEST(NodeRingTest, WhatIsLargerThanTheWindowGoesInRounds) {
  Cluster cluster({2, 2}, 1 << 14);
  ExpectNodesAgree(&cluster, {300, 7, 2000}, 5);
}

TEST(NodeRingTest, NodesOfDifferentSizesMergeByAsManyRanksAsTheSmallest) {
  Cluster cluster({3, 1, 2}, 1 << 14);
  ExpectNodesAgree(&cluster, {300, 7, 2000}, 5);
}

TEST(NodeRingTest, ARankAloneOnItsNodeSendsWhatItHas) {
  Cluster cluster({1, 1}, 1 << 14);
  ExpectNodesAgree(&cluster, {300, 7, 2000}, 2);
}

TEST(NodeRingTest, CallsThatDoNotFollowEachOtherAreRefused) {
  const auto join = [](const TempDir& folder) {
    return std::move(*NodeExchange::Create(folder / ".", {0, 1, 0, 1, 1 << 10}));
  };
  SerialExecutor serial;
  const RankGradients gradients = Draw(1, {100});
  const std::vector<Contribution> tables = gradients.Tables();
  std::vector<GradientSet> sums;
  const auto use = [](const std::vector<ReducedGradients>&) { return Status(); };
  const auto expect = [](const Status& status, Code code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  {
    TempDir folder;
    expect(join(folder)->Take(0, tables, serial, &sums), Code::kFailedPrecondition,
           "round 0 is not the next of the 0");
  }
  {
    TempDir folder;
    expect(join(folder)->Begin(Call(), tables, 1, serial), Code::kInvalidArgument,
           "needs 2 rounds for");
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    expect(rank->Finish(use), Code::kFailedPrecondition, "before its last round");
    expect(rank->Begin(Call(), tables, 3, serial), Code::kFailedPrecondition,
           "before its last round");  // an error is final
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    expect(rank->Begin(Call(), tables, 3, serial), Code::kFailedPrecondition, "was not finished");
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    EXPECT_TRUE(rank->Take(0, tables, serial, &sums).ok());
    expect(rank->Take(2, tables, serial, &sums), Code::kFailedPrecondition,
           "round 2 is not the next");
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    expect(rank->Put(0, {{3, {}}}, serial), Code::kFailedPrecondition, "sent in round 0");
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    expect(rank->Part([] { return Error(Code::kDataLoss, "damaged"); }), Code::kDataLoss,
           "damaged");
    // This error is final, too.
    expect(rank->Take(0, tables, serial, &sums), Code::kDataLoss, "damaged");
    auto ranks = NodeRanks::Open(folder / ".", 1);
    ASSERT_TRUE(ranks.ok());
    EXPECT_EQ((*ranks)->Look()[0].failure, "damaged");
  }
  {
    TempDir folder;
    const auto rank = join(folder);
    EXPECT_TRUE(rank->Begin(Call(), tables, 3, serial).ok());
    EXPECT_TRUE(rank->Take(0, tables, serial, &sums).ok());
    expect(rank->Put(0, {{7, {sums[0]}}}, serial), Code::kInvalidArgument,
           "rows of table 0 have 3 floats here and 7 on another node");
  }
}

}  // namespace
}  // namespace tsps
