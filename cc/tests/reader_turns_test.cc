// Readers that take longer than the time between two mutations of the writer.
#include "core/group/reader_turns.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

constexpr size_t kDim = 2;

class ReaderTurnsTest : public GroupTest {
 protected:
  void SetUp() override {
    GroupTest::SetUp();
    table_ = AddTable("t", kDim);
    keys_.resize(20000);
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = static_cast<int64_t>(i);
    ASSERT_TSPS_OK(Step(table_, keys_, 1.0f));
    auto reader = Group::Open(dir_ / "g");
    ASSERT_TRUE(reader.ok());
    reader_ = *reader;
  }
  // Runs `body` while a thread makes steps as fast as it can.
  void BesideAWriter(const std::function<void()>& body) {
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      while (!stop.load()) {
        ASSERT_TSPS_OK(Step(table_, {1, 2, 3}, 1.0f));
        ++steps_;
      }
    });
    body();
    stop = true;
    writer.join();
  }
  // Makes a read that waits until the writer has made a step meanwhile. If the writer makes none,
  // because it has yielded, the read ends after `longest_s`. Returns whether the read succeeded.
  bool ReadSlowly(int attempts, double longest_s = 0.004) {
    const auto read = reader_->TryRead(
        [&](const ReadView&) {
          const auto end =
              std::chrono::steady_clock::now() + std::chrono::duration<double>(longest_s);
          // The first step that is counted may have ended before the read began.
          const int64_t enough_steps = steps_.load() + 2;
          while (steps_.load() < enough_steps && std::chrono::steady_clock::now() < end)
            usleep(100);
          return Status();
        },
        60.0, attempts);
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.ok() && *read;
  }

  int table_ = 0;
  std::atomic<int64_t> steps_{0};  // made by the writer
  std::vector<int64_t> keys_;
  std::shared_ptr<Group> reader_;
};

TEST_F(ReaderTurnsTest, AReaderThatTakesLongerThanTheWriterIsQuietGetsATurn) {
  BesideAWriter([&] {
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(ReadSlowly(100)) << i;
  });
}

#ifdef TFSPS_FAULT_POINTS
TEST_F(ReaderTurnsTest, WithoutTurnsItLosesEveryTime) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFSPS_FAULT_OFF", "turns", 1);
    static_cast<void>(writer_.release());  // the parent's writer
    group_ = *Group::Create(dir_ / "own", kUuid);
    writer_ = std::move(*group_->OpenWriter());
    table_ = AddTable("t", kDim);
    reader_ = *Group::Open(dir_ / "own");
    bool read = true;
    BesideAWriter([&] { read = ReadSlowly(20, 10.0); });
    _exit(read ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the read succeeded";
}
#endif

// Each lookup needs a turn, and all places of scans are taken.
TEST_F(ReaderTurnsTest, ManyLookupsAtOnceNeedNoPlacesOfScans) {
  std::vector<std::unique_ptr<Scan>> scans;
  for (size_t i = 0; i < kMaxScans; ++i) {
    auto scan = Scan::Begin(*reader_, {});
    ASSERT_TRUE(scan.ok()) << scan.status().message();
    scans.push_back(std::move(*scan));
  }
  std::atomic<int> reads{0};
  const auto look_up = [&](size_t claimed) {
    const auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok());
    for (int i = 0; i < 5; ++i) {
      RowGather gather(*(*group)->Config(table_), table_, keys_.data(), keys_.size());
      std::vector<float> rows(keys_.size() * kDim);
      ASSERT_TSPS_OK(ReadOrScan(
          **group, {table_}, claimed, true, Scan::RowsAlone(),
          [&](const ReadView& view) {
            gather.Find(view, executor_);
            gather.CopyAll(rows.data(), executor_);
            return Status();
          },
          [](Scan&) { return Error(Code::kInternal, "no scan has a free place"); }));
      ++reads;
    }
  };
  BesideAWriter([&] {
    std::vector<std::thread> readers;
    for (int r = 0; r < 12; ++r) {
      // Some lookups claim so many keys that they would use a scan.
      readers.emplace_back([&, r] { look_up(r % 4 == 0 ? size_t{1} << 20 : keys_.size()); });
    }
    for (std::thread& reader : readers) reader.join();
  });
  EXPECT_EQ(reads.load(), 60);
}

TEST_F(ReaderTurnsTest, LookupsLeavePlacesToSaves) {
  Scan::Options lookups = Scan::RowsAlone();
  lookups.lookup = true;
  std::vector<std::unique_ptr<Scan>> scans;
  while (true) {
    auto scan = Scan::Begin(*reader_, {table_}, lookups);
    if (!scan.ok()) {
      EXPECT_EQ(scan.status().code(), Code::kUnavailable);
      break;
    }
    scans.push_back(std::move(*scan));
  }
  EXPECT_EQ(scans.size(), kMaxScans / 2);
  EXPECT_TRUE(Scan::Begin(*reader_, {}).ok());
}

TEST_F(ReaderTurnsTest, AReaderThatKeepsItsTurnStopsNobody) {
  const std::unique_ptr<ReaderTurn> kept = ReaderTurn::Take(dir_ / "g");
  ASSERT_NE(kept, nullptr);
  for (int i = 0; i < 200; ++i) ASSERT_TSPS_OK(Step(table_, {1, 2, 3}, 1.0f));
  BesideAWriter([&] { EXPECT_TRUE(ReadSlowly(INT_MAX)); });
}

}  // namespace
}  // namespace tsps
