#include "core/tier/record_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/group_fixture.h"
#include "tests/killed_at.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr uint64_t kSeed = 77;
constexpr uint32_t kMaxPlace = 1u << 31;

std::vector<uint32_t> FindAll(const RecordIndex& index, uint64_t tag) {
  std::vector<uint32_t> places;
  EXPECT_TRUE(index.Find(tag, &places));
  std::sort(places.begin(), places.end());
  return places;
}

void InsertOne(RecordIndex& index, uint64_t tag, uint32_t place) {
  ASSERT_TSPS_OK(index.Reserve(&tag, 1));
  index.Insert(tag, place);
}

std::multimap<uint64_t, uint32_t> Contents(const RecordIndex& index) {
  std::multimap<uint64_t, uint32_t> contents;
  index.ForEach([&](uint64_t tag, uint32_t place) { contents.emplace(tag, place); });
  return contents;
}

TEST(RecordIndex, RandomOperationsDoWhatAMapDoes) {
  TempDir dir;
  auto index = RecordIndex::Create(dir / "", kSeed);
  ASSERT_TRUE(index.ok()) << index.status().message();
  std::mt19937_64 random(1);
  std::map<int64_t, uint32_t> expected;
  std::vector<int64_t> keys;
  uint32_t next = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<uint64_t> tags;
    std::vector<int64_t> new_keys;
    for (int i = 0; i < 1500; ++i) {
      const int64_t key = static_cast<int64_t>(random() % 60000);
      if (expected.count(key) != 0) continue;
      expected[key] = next++;
      new_keys.push_back(key);
      tags.push_back(TagOf(key, kSeed));
    }
    ASSERT_TSPS_OK((*index)->Reserve(tags.data(), tags.size()));
    for (size_t i = 0; i < tags.size(); ++i) (*index)->Insert(tags[i], expected[new_keys[i]]);
    for (auto entry = expected.begin(); entry != expected.end();) {
      const uint64_t tag = TagOf(entry->first, kSeed);
      const uint64_t choice = random() % 8;
      if (choice == 0) {
        EXPECT_TRUE((*index)->Remove(tag, entry->second));
        EXPECT_FALSE((*index)->Remove(tag, entry->second));
        entry = expected.erase(entry);
        continue;
      }
      if (choice == 1) {
        EXPECT_TRUE((*index)->Replace(tag, entry->second, next));
        entry->second = next++;
      }
      ++entry;
    }
    EXPECT_EQ((*index)->live(), expected.size());
    if (round % 20 == 19) {  // first as a reader in another process, then as the next writer
      index = RecordIndex::Open(dir / "", kSeed);
      ASSERT_TRUE(index.ok()) << index.status().message();
      for (const auto& [key, place] : expected) {
        const std::vector<uint32_t> places = FindAll(**index, TagOf(key, kSeed));
        EXPECT_TRUE(std::count(places.begin(), places.end(), place)) << key;
      }
      ASSERT_TSPS_OK((*index)->MakeWritable(next));
      EXPECT_EQ((*index)->live(), expected.size());
    }
  }
  std::multimap<uint64_t, uint32_t> expected_contents;
  for (const auto& [key, place] : expected) expected_contents.emplace(TagOf(key, kSeed), place);
  std::set<std::pair<uint64_t, uint32_t>> expected_entries(expected_contents.begin(),
                                                           expected_contents.end());
  const auto entries = Contents(**index);
  EXPECT_EQ(expected_entries,
            (std::set<std::pair<uint64_t, uint32_t>>(entries.begin(), entries.end())));
  EXPECT_EQ(entries.size(), expected_contents.size());
}

TEST(RecordIndex, ARowTakesAtMostTwelveBytes) {
  TempDir dir;
  auto index = RecordIndex::Create(dir / "", kSeed);
  ASSERT_TRUE(index.ok()) << index.status().message();
  constexpr size_t kBatch = 20000;
  size_t rows = 0, false_matches = 0, lookups = 0;
  double most = 0;
  while (rows < 3'000'000) {
    std::vector<uint64_t> tags(kBatch);
    for (size_t i = 0; i < kBatch; ++i) tags[i] = TagOf(static_cast<int64_t>(rows + i), kSeed);
    ASSERT_TSPS_OK((*index)->Reserve(tags.data(), kBatch));
    for (size_t i = 0; i < kBatch; ++i) (*index)->Insert(tags[i], static_cast<uint32_t>(rows + i));
    rows += kBatch;
    if (rows >= 500'000) {
      most = std::max(most, static_cast<double>((*index)->bytes()) / static_cast<double>(rows));
    }
  }
  EXPECT_LE(most, 12.0);
  EXPECT_GE(most, 9.0);  // the bytes of the entries themselves
  for (int64_t key = -20000; key < 20000; ++key, ++lookups) {
    const auto places = FindAll(**index, TagOf(key, kSeed));
    false_matches += places.size() - (key >= 0);
  }
  EXPECT_LE(false_matches, lookups / 200);  // each costs a read of another key's record
}

// Uses stay with their entries while segments grow and split, and across a reopening. A visit of a
// range of tags meets each of its entries once.
TEST(RecordIndex, EntriesOfARangeAreVisitedWithTheirUses) {
  TempDir dir;
  constexpr uint32_t kRows = 60'000;
  const auto use_of = [](int64_t key) { return RecordUse{key, static_cast<uint64_t>(key) * 31}; };
  {
    auto index = RecordIndex::Create(dir / "", kSeed, /*has_uses=*/true);
    ASSERT_TRUE(index.ok()) << index.status().message();
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint64_t tag = TagOf(i, kSeed);
      ASSERT_TSPS_OK((*index)->Reserve(&tag, 1));
      (*index)->Insert(tag, i, use_of(i));
      if (i % 3 == 0) (*index)->Replace(tag, i, kRows + i);  // a copy of compaction
      if (i % 7 == 0) (*index)->Remove(tag, i % 3 == 0 ? kRows + i : i);
    }
  }
  EXPECT_EQ(RecordIndex::Open(dir / "", kSeed).status().code(), Code::kDataLoss);
  auto index = RecordIndex::Open(dir / "", kSeed, /*has_uses=*/true);
  ASSERT_TRUE(index.ok()) << index.status().message();
  ASSERT_TSPS_OK((*index)->MakeWritable(2 * kRows));
  const uint64_t last = (uint64_t{1} << kTagBits) - 1;
  const std::pair<uint64_t, uint64_t> ranges[] = {
      {0, last}, {last / 3, last / 2}, {last / 5 * 4, last}, {TagOf(5, kSeed), TagOf(5, kSeed)}};
  for (const auto& [first, end] : ranges) {
    std::set<int64_t> expected, found;
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint64_t tag = TagOf(i, kSeed);
      if (i % 7 != 0 && tag >= first && tag <= end) expected.insert(i);
    }
    const auto visit = [&](uint32_t place, const RecordUse& use) {
      EXPECT_TRUE(found.insert(use.key).second) << use.key;
      EXPECT_EQ(use.use, use_of(use.key).use);
      EXPECT_EQ(place, use.key % 3 == 0 ? kRows + use.key : use.key);
    };
    ASSERT_TSPS_OK((*index)->ForEachUse(first, end, visit));
    EXPECT_EQ(found, expected);
  }
  const uint64_t tag = TagOf(5, kSeed);
  (*index)->Insert(tag, 1, {6, 0});
  const auto ignore = [](uint32_t, const RecordUse&) {};
  EXPECT_EQ((*index)->ForEachUse(tag, tag, ignore).code(), Code::kDataLoss);
}

TEST(RecordIndex, TagsThatCrowdInOneHalfFitAndEndWithAnError) {
  TempDir dir;
  auto index = RecordIndex::Create(dir / "", kSeed);
  ASSERT_TRUE(index.ok()) << index.status().message();
  Status status;
  uint32_t n = 0;
  for (; n < 100'000 && status.ok(); ++n) {
    const uint64_t tag = n;  // the bits that the directory uses are 0 in all tags
    status = (*index)->Reserve(&tag, 1);
    if (status.ok()) (*index)->Insert(tag, n);
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("cannot grow"), std::string::npos) << status.message();
  for (uint32_t i = 0; i + 1 < n; ++i) {
    EXPECT_EQ(FindAll(**index, i), std::vector<uint32_t>{i});
  }
}

TEST(RecordIndex, AnotherTablesOrADamagedOneIsRefused) {
  TempDir dir;
  {
    auto index = RecordIndex::Create(dir / "", kSeed);
    ASSERT_TRUE(index.ok()) << index.status().message();
    for (uint32_t i = 0; i < 20'000; ++i) InsertOne(**index, TagOf(i, kSeed), i);
  }
  EXPECT_EQ(RecordIndex::Open(dir / "", kSeed + 1).status().code(), Code::kDataLoss);
  {
    auto index = RecordIndex::Open(dir / "", kSeed);
    ASSERT_TRUE(index.ok());
    EXPECT_EQ((*index)->MakeWritable(19'999).code(), Code::kDataLoss);  // a place is out of range
  }
  auto index = RecordIndex::Open(dir / "", kSeed);
  ASSERT_TRUE(index.ok());
  ASSERT_TSPS_OK((*index)->MakeWritable(kMaxPlace));
}

#ifdef TFSPS_FAULT_POINTS
TEST(RecordIndex, AKilledGrowthIsUndoneOrFinished) {
  for (const char* point :
       {"record_index_copied", "record_index_split_copied", "record_index_split"}) {
    for (long n = 1; n < 12; n += 3) {
      TempDir dir;
      {
        auto created = RecordIndex::Create(dir / "", kSeed);
        ASSERT_TRUE(created.ok()) << created.status().message();
      }
      constexpr uint32_t kRows = 120'000;
      const bool killed = KilledAt(point, n, [&] {
        auto index = RecordIndex::Open(dir / "", kSeed);
        if (!index.ok() || !(*index)->MakeWritable(kMaxPlace).ok()) _exit(1);
        for (uint32_t i = 0; i < kRows; ++i) InsertOne(**index, TagOf(i, kSeed), i);
      });
      EXPECT_TRUE(killed) << point << " " << n;
      auto index = RecordIndex::Open(dir / "", kSeed);
      ASSERT_TRUE(index.ok()) << index.status().message();
      ASSERT_TSPS_OK((*index)->MakeWritable(kMaxPlace));
      const auto live = static_cast<uint32_t>((*index)->live());
      EXPECT_GT(live, 0u);
      for (uint32_t i = 0; i < live; ++i) {
        const auto places = FindAll(**index, TagOf(i, kSeed));
        ASSERT_EQ(std::count(places.begin(), places.end(), i), 1) << i;
      }
      for (uint32_t i = live; i < kRows; ++i) InsertOne(**index, TagOf(i, kSeed), i);
      EXPECT_EQ(Contents(**index).size(), kRows);
    }
  }
}
#endif

}  // namespace
}  // namespace tsps
