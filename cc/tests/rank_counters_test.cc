#include "core/group/rank_counters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

const std::string kPage = ".counters-0003";

TEST(RankCounters, AnotherProcessReadsWhatARankHasCounted) {
  const TempDir folder;
  auto counters = RankCounters::Create(folder / "", 7, 8, 3);
  ASSERT_TRUE(counters.ok()) << counters.status().message();
  uint64_t values[kRankCounters];
  for (size_t i = 0; i < kRankCounters; ++i) values[i] = 100 + i;
  (*counters)->Store(values);
  auto again = RankCounters::Open(folder / kPage);
  ASSERT_TRUE(again.ok());
  (*again)->SetActivity("restoring a checkpoint");
  auto report = RankCounters::Read(folder / kPage);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->pid, getpid());
  EXPECT_GT(report->started, 0u);
  EXPECT_EQ(report->rank, 7);
  EXPECT_EQ(report->size, 8);
  EXPECT_EQ(report->local_rank, 3);
  EXPECT_GT(report->updated_ns, 0);
  EXPECT_EQ(report->activity, "restoring a checkpoint");
  ASSERT_EQ(report->values.size(), RankCounters::Names().size());
  for (size_t i = 0; i < kRankCounters; ++i) EXPECT_EQ(report->values[i], 100 + i);
}

TEST(RankCounters, LongTextsAreCut) {
  const TempDir folder;
  auto counters = RankCounters::Create(folder / "", 0, 1, 3);
  ASSERT_TRUE(counters.ok());
  (*counters)->SetActivity(std::string(5000, 'x'));
  EXPECT_EQ(RankCounters::Read(folder / kPage)->activity, std::string(kRankTextBytes - 1, 'x'));
  (*counters)->SetActivity("");
  EXPECT_EQ(RankCounters::Read(folder / kPage)->activity, "");
}

TEST(RankCounters, APageOfAnEarlierProcessIsReplaced) {
  const TempDir folder;
  auto earlier = RankCounters::Create(folder / "", 1, 2, 3);
  ASSERT_TRUE(earlier.ok());
  auto later = RankCounters::Create(folder / "", 5, 6, 3);
  ASSERT_TRUE(later.ok());
  (*earlier)->SetActivity("gone");
  auto report = RankCounters::Read(folder / kPage);
  EXPECT_EQ(report->rank, 5);
  EXPECT_EQ(report->activity, "");
}

TEST(RankCounters, OtherFilesAreRefused) {
  const TempDir folder;
  EXPECT_EQ(RankCounters::Read(folder / kPage).status().code(), Code::kNotFound);
  std::ofstream(folder / kPage) << std::string(100, 'x');
  EXPECT_EQ(RankCounters::Read(folder / kPage).status().code(), Code::kDataLoss);
  std::ofstream(folder / kPage) << std::string(5000, 'x');
  EXPECT_EQ(RankCounters::Read(folder / kPage).status().code(), Code::kDataLoss);
  ASSERT_EQ(unlink((folder / kPage).c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", (folder / kPage).c_str()), 0);
  EXPECT_EQ(RankCounters::Read(folder / kPage).status().code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace tsps
