// Ranks of a node fetch rows of other nodes: what they get, what is sent for it, and how it ends.
#include "core/exchange/row_pull.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/key_owner.h"
#include "core/wire/owner_sets.h"
#include "core/wire/wire.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr uint32_t kNodes = 3, kNode = 1;

// What every node would say that a row is.
float Value(size_t table, int64_t key, size_t d) {
  return static_cast<float>(key % 1000) + 0.5f * static_cast<float>(d) +
         1000.0f * static_cast<float>(table);
}

MergeCall Call(double timeout_s = 20) {
  MergeCall call;
  call.operation = "pull";
  call.step = 3;
  call.timeout_s = timeout_s;
  return call;
}

std::unique_ptr<RowPull> Rank(const std::string& folder, int local_rank, int local_size,
                              int mergers) {
  RowPull::Options options;
  options.local_rank = local_rank;
  options.local_size = local_size;
  options.rank = 10 + local_rank;
  options.mergers = mergers;
  options.nodes = kNodes;
  options.node = kNode;
  auto rank = RowPull::Create(folder, options);
  EXPECT_TRUE(rank.ok()) << rank.status().message();
  return std::move(*rank);
}

std::vector<std::vector<int64_t>> Draw(uint64_t seed, const std::vector<size_t>& sizes) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int64_t>> tables;
  for (const size_t size : sizes) {
    std::set<int64_t> keys;
    while (keys.size() < size) keys.insert(static_cast<int64_t>(random() % (3 * size)));
    std::vector<int64_t> shuffled(keys.begin(), keys.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    tables.push_back(shuffled);
  }
  return tables;
}

// One call of one rank; returns what it got, NaN where its own node has the row.
struct Got {
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<int64_t>> wanted;  // by this rank, of other nodes
  std::vector<std::vector<int64_t>> here;    // by the ranks, of this node
  bool agreed = false;
  Status status;
};

Got Pull(RowPull& pull, const std::vector<std::vector<int64_t>>& keys,
         const RowPull::AskOptions& options = {}) {
  SerialExecutor serial;
  Got got;
  std::vector<AskedKeys> asked;
  RowTargets targets;
  for (size_t t = 0; t < keys.size(); ++t) {
    asked.push_back({keys[t].data(), keys[t].size(), t + 2});
    got.rows.emplace_back(keys[t].size() * (t + 2), NAN);
  }
  for (auto& rows : got.rows) targets.push_back({rows.data()});
  got.status = pull.Ask(Call(), asked, options, serial);
  if (!got.status.ok()) return got;
  if (pull.Sends()) {
    for (const RowPull::Wanted& wanted : pull.wanted()) {
      got.wanted.push_back(wanted.keys);
      EXPECT_EQ(wanted.starts.back(), wanted.keys.size());
      EXPECT_EQ(wanted.starts[kNode], wanted.starts[kNode + 1]) << "its own keys travel";
      for (uint32_t node = 0; node < kNodes; ++node) {
        for (size_t i = wanted.starts[node]; i < wanted.starts[node + 1]; ++i) {
          EXPECT_EQ(OwnerOf(wanted.keys[i], kNodes), node);
          if (i > wanted.starts[node]) {
            EXPECT_LT(wanted.keys[i - 1], wanted.keys[i]);
          }
        }
      }
    }
    got.here = pull.here();
    got.status = pull.Answer([&](const std::vector<RowPull::Fetched>& tables) -> Result<bool> {
      for (size_t t = 0; t < tables.size(); ++t) {
        for (size_t i = 0; i < pull.wanted()[t].keys.size(); ++i) {
          tables[t].present[i] = 1;
          for (size_t d = 0; d < t + 2; ++d) {
            tables[t].rows[i * (t + 2) + d] = Value(t, pull.wanted()[t].keys[i], d);
          }
        }
      }
      return pull.flag();
    });
    if (!got.status.ok()) return got;
  }
  got.status = pull.Collect(targets, serial);
  got.agreed = pull.agreed();
  return got;
}

void ExpectRows(const Got& got, const std::vector<std::vector<int64_t>>& keys) {
  ASSERT_TRUE(got.status.ok()) << got.status.message();
  for (size_t t = 0; t < keys.size(); ++t) {
    for (size_t i = 0; i < keys[t].size(); ++i) {
      for (size_t d = 0; d < t + 2; ++d) {
        const float row = got.rows[t][i * (t + 2) + d];
        if (OwnerOf(keys[t][i], kNodes) == kNode) {
          ASSERT_TRUE(std::isnan(row)) << "its own row was written";
        } else {
          ASSERT_EQ(row, Value(t, keys[t][i], d)) << "table " << t << ", key " << keys[t][i];
        }
      }
    }
  }
}

class RowPullTest : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(RowPullTest, EveryRankGetsItsRowsAndNoneTravelsTwice) {
  const auto [ranks, mergers] = GetParam();
  const TempDir dir;
  constexpr int kCalls = 6;
  std::vector<std::vector<std::vector<std::vector<int64_t>>>> keys(kCalls);
  std::vector<std::vector<Got>> got(kCalls, std::vector<Got>(static_cast<size_t>(ranks)));
  for (int call = 0; call < kCalls; ++call) {
    for (int r = 0; r < ranks; ++r) {
      // One call without keys, and one of many.
      const size_t n = call == 2 ? 0 : call == 4 ? 5000 : 40;
      keys[call].push_back(Draw(static_cast<uint64_t>(100 * call + r), {n, 3 * n, r == 0 ? n : 0}));
    }
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, n_ranks = ranks, n_mergers = mergers] {
      const auto pull = Rank(dir / ".", r, n_ranks, n_mergers);
      for (int call = 0; call < kCalls; ++call) got[call][r] = Pull(*pull, keys[call][r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int call = 0; call < kCalls; ++call) {
    for (size_t t = 0; t < 3; ++t) {
      std::vector<int64_t> sent;
      std::set<int64_t> needed;
      for (int r = 0; r < ranks; ++r) {
        ExpectRows(got[call][r], keys[call][r]);
        if (r < mergers || mergers == 0) {
          const auto& wanted = got[call][r].wanted[t];
          sent.insert(sent.end(), wanted.begin(), wanted.end());
        }
        for (const int64_t key : keys[call][r][t]) {
          if (OwnerOf(key, kNodes) != kNode) needed.insert(key);
        }
      }
      EXPECT_EQ(sent.size(), needed.size()) << "call " << call << ", table " << t;
      EXPECT_EQ(std::set<int64_t>(sent.begin(), sent.end()), needed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RowPullTest,
                         testing::Values(std::pair{1, 0}, std::pair{2, 0}, std::pair{4, 0},
                                         std::pair{3, 1}, std::pair{4, 2}));

TEST(RowPullTogetherTest, RanksAreToldOfFlagsAndOfKeysThatTheirNodeHas) {
  const TempDir dir;
  constexpr int kRanks = 3, kCalls = 4;
  std::vector<std::vector<Got>> got(kCalls, std::vector<Got>(kRanks));
  const auto keys_of = [](int call, int rank) {
    return Draw(static_cast<uint64_t>(10 * call + rank), {200, 50});
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const auto pull = Rank(dir / ".", r, kRanks, 2);
      for (int call = 0; call < kCalls; ++call) {
        got[call][r] = Pull(*pull, keys_of(call, r), {/*flag=*/call == 1 && r == 2, call >= 2});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int call = 0; call < kCalls; ++call) {
    for (size_t t = 0; t < 2; ++t) {
      std::multiset<int64_t> here, expected;
      for (int r = 0; r < kRanks; ++r) {
        ExpectRows(got[call][r], keys_of(call, r));
        EXPECT_EQ(got[call][r].agreed, call == 1);
        if (r < 2) here.insert(got[call][r].here[t].begin(), got[call][r].here[t].end());
        const std::vector<std::vector<int64_t>> keys = keys_of(call, r);
        for (const int64_t key : keys[t]) {
          if (call >= 2 && OwnerOf(key, kNodes) == kNode) expected.insert(key);
        }
      }
      EXPECT_EQ(here, expected) << "call " << call << ", table " << t;
    }
  }
}

TEST(RowPullTogetherTest, RowsThatARankHasDoNotTravelAndRowsMayStayAway) {
  const TempDir dir;
  SerialExecutor serial;
  const auto pull = Rank(dir / ".", 0, 1, 0);
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 10; ++key) {
    if (OwnerOf(key, kNodes) != kNode) keys.push_back(key);
  }
  std::vector<uint8_t> have(10);
  have[3] = have[7] = 1;
  std::vector<float> rows(20, NAN);
  std::vector<uint8_t> present(10);
  ASSERT_TRUE(pull->Ask(Call(), {{keys.data(), 10, 2, have.data()}}, {}, serial).ok());
  ASSERT_EQ(pull->wanted()[0].keys.size(), 8u);
  int64_t away = 0;
  ASSERT_TRUE(pull->Answer([&](const std::vector<RowPull::Fetched>& tables) -> Result<bool> {
                    for (size_t i = 1; i < 8; ++i) {
                      tables[0].present[i] = 1;
                      std::fill_n(tables[0].rows + 2 * i, 2,
                                  static_cast<float>(pull->wanted()[0].keys[i]));
                    }
                    away = pull->wanted()[0].keys[0];
                    return false;
                  })
                  .ok());
  ASSERT_TRUE(pull->Collect({{rows.data(), present.data()}}, serial).ok());
  for (size_t i = 0; i < 10; ++i) {
    const bool came = have[i] == 0 && keys[i] != away;
    EXPECT_EQ(present[i] != 0, came) << i;
    if (came) {
      EXPECT_EQ(rows[2 * i], static_cast<float>(keys[i]));
    } else {
      EXPECT_TRUE(std::isnan(rows[2 * i]));
    }
  }
  // Of a look-up all must come.
  ASSERT_TRUE(pull->Ask(Call(), {{keys.data(), 10, 2}}, {}, serial).ok());
  ASSERT_TRUE(pull->Answer([](const auto&) -> Result<bool> { return false; }).ok());
  EXPECT_EQ(pull->Collect({{rows.data()}}, serial).code(), Code::kInternal);
}

TEST(RowPullErrorTest, AnErrorOfOneRankIsEveryones) {
  const TempDir dir;
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto pull = Rank(dir / ".", r, 2, 0);
      SerialExecutor serial;
      std::vector<float> row(2);
      const int64_t key = 5;
      statuses[r] = pull->Ask(Call(), {{&key, 1, 2}}, {}, serial);
      if (!statuses[r].ok()) return;
      statuses[r] = pull->Answer([&](const std::vector<RowPull::Fetched>& tables) -> Result<bool> {
        if (r == 0) return Error(Code::kInvalidArgument, "the owner has no such table");
        for (size_t i = 0; i < pull->wanted()[0].keys.size(); ++i) tables[0].present[i] = 1;
        return true;
      });
      if (statuses[r].ok()) statuses[r] = pull->Collect({{row.data()}}, serial);
      // It is final.
      EXPECT_FALSE(pull->Ask(Call(), {{&key, 1, 2}}, {}, serial).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(statuses[0].code(), Code::kInvalidArgument);
  EXPECT_EQ(statuses[1].code(), Code::kAborted);
  EXPECT_NE(statuses[1].message().find("rank 10"), std::string::npos) << statuses[1].message();
  EXPECT_NE(statuses[1].message().find("no such table"), std::string::npos);
}

TEST(RowPullErrorTest, RanksThatAskForOtherTablesAreToldSo) {
  const TempDir dir;
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto pull = Rank(dir / ".", r, 2, 0);
      SerialExecutor serial;
      const int64_t key = 5;
      statuses[r] = pull->Ask(Call(), {{&key, 1, r == 0 ? size_t{2} : size_t{3}}}, {}, serial);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
}

TEST(RowPullErrorTest, ARankThatDoesNotComeIsNamed) {
  const TempDir dir;
  SerialExecutor serial;
  const auto pull = Rank(dir / ".", 0, 2, 0);
  const int64_t key = 5;
  const Status never = pull->Ask(Call(0.2), {{&key, 1, 2}}, {}, serial);
  EXPECT_EQ(never.code(), Code::kDeadlineExceeded);
  EXPECT_NE(never.message().find("all ranks together"), std::string::npos) << never.message();

  const TempDir other;
  const auto first = Rank(other / ".", 0, 2, 0);
  const auto second = Rank(other / ".", 1, 2, 0);
  const Status late = first->Ask(Call(0.2), {{&key, 1, 2}}, {}, serial);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_NE(late.message().find("rank 11"), std::string::npos) << late.message();
}

TEST(OwnerSetsTest, EachOwnerGetsItsKeysWithTheirCountsAndRows) {
  SerialExecutor serial;
  std::vector<int64_t> keys(1000);
  std::vector<int32_t> counts(keys.size());
  std::vector<float> rows(keys.size() * 3);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(i * 7919) - 3000;
    counts[i] = 1 + static_cast<int32_t>(i % 4);
    for (size_t d = 0; d < 3; ++d) rows[i * 3 + d] = Value(0, keys[i], d);
  }
  const OwnerSets sets({{keys.data(), counts.data(), rows.data(), keys.size(), 3}}, 4, serial);
  size_t all = 0;
  for (uint32_t owner = 0; owner < 4; ++owner) {
    auto packer = WirePacker::Create(sets.Of(owner), WireType::kFloat32, serial);
    ASSERT_TRUE(packer.ok()) << packer.status().message();
    std::vector<uint8_t> buffer(PaddedBytes(packer->bytes()));
    packer->Write(buffer.data(), buffer.size(), serial);
    const auto reader = WireReader::Open(buffer.data(), buffer.size());
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const size_t n = reader->n(0);
    all += n;
    EXPECT_NEAR(static_cast<double>(n), 250, 60) << "owners have equal parts";
    std::vector<int64_t> its(n);
    std::vector<int32_t> its_counts(n);
    std::vector<float> its_rows(n * 3);
    ASSERT_TRUE(reader->Keys(0, its.data()).ok());
    ASSERT_TRUE(reader->Counts(0, its_counts.data()).ok());
    reader->Rows(0, its_rows.data(), serial);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(OwnerOf(its[i], 4), owner);
      ASSERT_EQ(its_counts[i], 1 + static_cast<int32_t>(((its[i] + 3000) / 7919) % 4));
      for (size_t d = 0; d < 3; ++d) ASSERT_EQ(its_rows[i * 3 + d], Value(0, its[i], d));
    }
  }
  EXPECT_EQ(all, keys.size());
}

TEST(WireTest, KeysTravelWithoutRows) {
  SerialExecutor serial;
  const std::vector<int64_t> keys = {5, -3, INT64_MAX};
  auto packer = WirePacker::Create(
      {{keys.data(), nullptr, nullptr, keys.size(), 0}, {keys.data(), nullptr, nullptr, 0, 0}},
      WireType::kBfloat16, serial);
  ASSERT_TRUE(packer.ok()) << packer.status().message();
  std::vector<uint8_t> buffer(PaddedBytes(packer->bytes()));
  packer->Write(buffer.data(), buffer.size(), serial);
  const auto reader = WireReader::Open(buffer.data(), buffer.size());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_EQ(reader->n(0), 3u);
  EXPECT_EQ(reader->n(1), 0u);
  std::vector<int64_t> read(3);
  ASSERT_TRUE(reader->Keys(0, read.data()).ok());
  EXPECT_EQ(read, (std::vector<int64_t>{-3, 5, INT64_MAX}));
}

}  // namespace
}  // namespace tsps
