#include "core/tier/record_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "core/tier/record_appender.h"
#include "core/tier/record_files.h"
#include "core/tier/record_reads.h"
#include "tests/group_fixture.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr size_t kPayload = 132;  // 144 bytes a record
const char kOtherTable[] = "0123456789abcdef0123456789abcdef";
const char kTable[] = "fedcba9876543210fedcba9876543210";

class RecordLogTest : public testing::Test {
 protected:
  void SetUp() override {
    auto threads = IoThreads::Start(4, 64 * 1024);
    ASSERT_TRUE(threads.ok()) << threads.status().message();
    threads_ = std::move(*threads);
    Reopen();
  }

  RecordLayout Layout(size_t payload = kPayload) const {
    return RecordLayout(kTable, payload, 256 * 1024);
  }

  void Reopen() {
    auto log = RecordLog::Open(dir_ / "", Layout(), *threads_);
    ASSERT_TRUE(log.ok()) << log.status().message();
    appender_.reset();
    log_ = std::move(*log);
    files_ = std::make_unique<RecordFiles>(log_->folder(), log_->layout());
    ASSERT_TSPS_OK(files_->Load(*threads_));
    appender_ = std::make_unique<RecordAppender>(*log_, *files_, RecordKind::kRows);
  }

  // Fills in the payload of a record, which depends on the key and its version.
  static void FillPayload(int64_t key, uint32_t version, char* payload) {
    for (size_t i = 0; i < kPayload; ++i) {
      payload[i] = static_cast<char>(key * 31 + version * 7 + static_cast<int64_t>(i));
    }
  }

  Status Append(const std::vector<int64_t>& keys, uint32_t version) {
    std::vector<uint32_t> places(keys.size());
    TSPS_RETURN_IF_ERROR(appender_->Append(
        keys.size(),
        [&](size_t i, char* payload) {
          FillPayload(keys[i], version, payload);
          return keys[i];
        },
        places.data()));
    for (size_t i = 0; i < keys.size(); ++i) rows_[keys[i]] = {places[i], version};
    return {};
  }

  void ExpectAll() {
    std::vector<uint32_t> places;
    std::vector<int64_t> keys;
    for (const auto& [key, row] : rows_) {
      keys.push_back(key);
      places.push_back(row.first);
    }
    std::mt19937 random(3);
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::vector<uint32_t> shuffled;
    for (const size_t i : order) shuffled.push_back(places[i]);
    std::atomic<size_t> wrong{0}, seen{0};
    ASSERT_TSPS_OK(log_->Read(
        shuffled.data(), shuffled.size(), false, [&](size_t i, int64_t key, const char* payload) {
          char expected[kPayload];
          FillPayload(keys[order[i]], rows_[keys[order[i]]].second, expected);
          wrong += key != keys[order[i]] || std::memcmp(payload, expected, kPayload) != 0;
          ++seen;
        }));
    EXPECT_EQ(wrong.load(), 0u);
    EXPECT_EQ(seen.load(), keys.size());
  }

  TempDir dir_;
  std::unique_ptr<IoThreads> threads_;
  std::unique_ptr<RecordLog> log_;
  std::unique_ptr<RecordFiles> files_;
  std::unique_ptr<RecordAppender> appender_;
  std::map<int64_t, std::pair<uint32_t, uint32_t>> rows_;  // place and version
};

TEST_F(RecordLogTest, WhatWasWrittenIsReadInAnyOrderAndAfterARestart) {
  std::mt19937_64 random(1);
  for (uint32_t version = 0; version < 12; ++version) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 5000; ++key) {
      if (random() % 4 == 0) keys.push_back(key - 2500);
    }
    ASSERT_TSPS_OK(Append(keys, version));
    if (version % 4 == 3) Reopen();
    ExpectAll();
  }
  EXPECT_GT(RecordFilesIn(log_->folder()).size(), 5u);
  EXPECT_EQ(files_->bytes(), log_->bytes());
}

TEST_F(RecordLogTest, RecordsOfSeveralFilesAndPagesAreReadByFewReads) {
  std::vector<int64_t> keys(10'000);
  std::iota(keys.begin(), keys.end(), 0);
  ASSERT_TSPS_OK(Append(keys, 0));
  const RecordLog::Counters before = log_->counters();
  ExpectAll();
  const RecordLog::Counters after = log_->counters();
  EXPECT_LE(after.reads - before.reads, 40u);  // of at most 64 KiB each
  EXPECT_LE(after.bytes_read - before.bytes_read, 10'000 * 144 * 11 / 10u);
}

TEST_F(RecordLogTest, RecordsOfMoreThanAPageAndOfMoreThanAWrite) {
  for (const size_t payload : {size_t{5000}, size_t{3} << 20}) {
    TempDir dir;
    auto threads = IoThreads::Start(2, payload + 3 * kPageBytes);
    ASSERT_TRUE(threads.ok());
    auto log = RecordLog::Open(dir / "", Layout(payload), **threads);
    ASSERT_TRUE(log.ok()) << log.status().message();
    std::vector<uint32_t> places(7);
    RecordFiles files((*log)->folder(), (*log)->layout());
    RecordAppender appender(**log, files, RecordKind::kRows);
    ASSERT_TSPS_OK(appender.Append(
        7,
        [&](size_t i, char* to) {
          std::memset(to, static_cast<int>(i) + 1, payload);
          return static_cast<int64_t>(i);
        },
        places.data()));
    std::atomic<size_t> right{0};
    ASSERT_TSPS_OK(
        (*log)->Read(places.data(), 7, true, [&](size_t i, int64_t key, const char* record) {
          right +=
              key == static_cast<int64_t>(i) && record[payload - 1] == static_cast<char>(i + 1);
        }));
    EXPECT_EQ(right.load(), 7u);
  }
}

TEST_F(RecordLogTest, ChangedBytesAreNoticedAndNamed) {
  std::vector<int64_t> keys(3000);
  std::iota(keys.begin(), keys.end(), 0);
  ASSERT_TSPS_OK(Append(keys, 0));
  const uint32_t place = rows_[1234].first;
  const RecordLayout layout = Layout();
  const std::string path = RecordFile::PathOf(dir_ / "", layout.file_of(place));
  const int fd = open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  const off_t at = static_cast<off_t>(layout.offset(layout.slot_of(place))) + 70;
  ASSERT_EQ(pwrite(fd, "x", 1, at), 1);
  close(fd);
  const auto ignore = [](size_t, int64_t, const char*) {};
  const Status status = log_->Read(&place, 1, false, ignore);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  const uint32_t absent_place = place + 100'000'000;
  EXPECT_EQ(log_->Read(&absent_place, 1, false, ignore).code(), Code::kNotFound);
  rows_.erase(1234);
  ExpectAll();
}

TEST_F(RecordLogTest, FilesOfAnotherGroupOrOfOtherRecordsAreRefused) {
  ASSERT_TSPS_OK(Append({1, 2, 3}, 0));
  const auto refused = [&](const RecordLayout& layout, const char* why) {
    const std::string folder = dir_ / "";
    const Status status = RecordFiles(folder, layout).Load(*threads_);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  refused(RecordLayout(kOtherTable, kPayload, 256 * 1024), "belongs to the table");
  refused(Layout(kPayload + 8), "Expected: file");
  ASSERT_EQ(truncate(RecordFile::PathOf(dir_ / "", 0).c_str(), 100), 0);
  refused(Layout(), "A header has");
}

// The number of a removed file is given to a new file. A reader that has the removed file open
// reads the new one.
TEST_F(RecordLogTest, ARemovedFilesNumberMayComeAgain) {
  ASSERT_TSPS_OK(Append({1, 2, 3}, 0));
  auto reader = RecordLog::Open(dir_ / "", Layout(), *threads_);
  ASSERT_TRUE(reader.ok());
  const uint32_t place = rows_[2].first;
  const auto read = [&] {
    int64_t key_read = -1;
    const Status status = (*reader)->Read(
        &place, 1, false, [&](size_t, int64_t key, const char*) { key_read = key; });
    return status.ok() ? key_read : -1;
  };
  EXPECT_EQ(read(), 2);
  ASSERT_TSPS_OK(log_->RemoveFile(0));
  EXPECT_EQ(read(), -1);
  Reopen();
  ASSERT_TSPS_OK(Append({7, 8, 9}, 0));
  EXPECT_EQ(rows_[8].first, place);
  EXPECT_EQ(read(), 8);
}

TEST_F(RecordLogTest, AWriteThatFailsIsRepeatedAtTheSamePlaces) {
  std::vector<int64_t> keys(1000);
  std::iota(keys.begin(), keys.end(), 0);
  ASSERT_TSPS_OK(Append({-1}, 0));
  signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const rlimit limit = {64 * 1024, unlimited.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status refused = Append(keys, 0);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("records.0"), std::string::npos) << refused.message();
  ExpectAll();
  ASSERT_TSPS_OK(Append(keys, 1));
  ExpectAll();
  EXPECT_EQ(RecordFilesIn(log_->folder()).size(), 1u);
}

TEST_F(RecordLogTest, ThreadsSharedByManyCallersServeThemAll) {
  std::vector<int64_t> keys(4000);
  std::iota(keys.begin(), keys.end(), 0);
  ASSERT_TSPS_OK(Append(keys, 0));
  std::vector<std::thread> callers;
  std::atomic<size_t> asked{0}, seen{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (int64_t key = caller; key < 4000; key += 97) {
        const uint32_t place = rows_.at(key).first;
        ++asked;
        const Status status =
            log_->Read(&place, 1, caller % 2 == 0,
                       [&](size_t, int64_t key_read, const char*) { seen += key_read == key; });
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(seen.load(), asked.load());
}

TEST(RecordReads, NearRecordsAreReadTogetherAndFarOnesAlone) {
  const RecordLayout layout(kTable, kPayload, 1 << 20);
  const std::vector<uint32_t> places = {0, 1, 30, 400, 401, 5000};
  const auto reads_without_gaps = PlanReads(layout, places.data(), places.size(), {0, 64 * 1024});
  ASSERT_EQ(reads_without_gaps.size(), 3u);
  EXPECT_EQ(reads_without_gaps[0].n, 3u);
  const auto reads_with_gaps =
      PlanReads(layout, places.data(), places.size(), {16 * 4096, 1 << 20});
  ASSERT_EQ(reads_with_gaps.size(), 2u);
  EXPECT_EQ(reads_with_gaps[0].n, 5u);
  EXPECT_EQ(CheapestReads(layout, places.data(), places.size(), 0, 1 << 20).gap_bytes, 0u);
  EXPECT_EQ(CheapestReads(layout, places.data(), places.size(), 1 << 20, 1 << 20).gap_bytes,
            16u * 4096);
}

}  // namespace
}  // namespace tsps
