#include "core/wire/wire_buffers.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace tsps {
namespace {

// Appends one sender's gradients of a table of width 2. The keys begin with `first`. The floats of
// a row are its key (exact in bfloat16 up to 256) and `sender`.
void Send(int64_t first, size_t n, int sender, std::vector<uint8_t>* wire, size_t splits = 1) {
  std::vector<int64_t> keys;
  std::vector<float> rows;
  for (size_t i = 0; i < n; ++i) {
    keys.push_back(first + static_cast<int64_t>(i));
    rows.insert(rows.end(), {static_cast<float>(keys.back()), static_cast<float>(sender)});
  }
  SerialExecutor executor;
  const auto packer = WirePacker::Create({{keys.data(), nullptr, rows.data(), n, 2}},
                                         WireType::kBfloat16, executor);
  ASSERT_TRUE(packer.ok()) << packer.status().message();
  const size_t begin = wire->size();
  wire->resize(begin + PaddedBytes(packer->bytes(), splits));
  packer->Write(wire->data() + begin, wire->size() - begin, executor);
}

void ExpectSet(const GradientSet& set, int64_t first, size_t n, int sender) {
  ASSERT_EQ(set.n, n);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(set.keys[i], first + static_cast<int64_t>(i));
    EXPECT_EQ(set.counts[i], 1);
    EXPECT_EQ(set.rows[2 * i], static_cast<float>(set.keys[i]));
    EXPECT_EQ(set.rows[2 * i + 1], static_cast<float>(sender));
  }
}

TEST(WireBuffersTest, RoundsOfOneSizeUseTheMemoryOfTheFirst) {
  SerialExecutor executor;
  WireBuffers buffers;
  std::set<const float*> rows;
  for (const size_t n : {100u, 90u, 104u, 1u, 0u, 100u}) {
    std::vector<uint8_t> wire;
    Send(10, n, 0, &wire);
    Send(20, n, 1, &wire);
    ASSERT_TRUE(buffers.Unpack(wire.data(), wire.size(), 1, /*splits=*/1, executor).ok());
    ASSERT_EQ(buffers.tables().size(), 1u);
    const TableSets& table = buffers.tables().front();
    ASSERT_EQ(table.sets.size(), 2u);
    ExpectSet(table.sets[0], 10, n, 0);
    ExpectSet(table.sets[1], 20, n, 1);
    for (const GradientSet& set : table.sets) rows.insert(set.rows);
  }
  EXPECT_EQ(rows.size(), 2u);  // one place for each sender
}

TEST(WireBuffersTest, RoundsMayGrowAndHaveOtherSenders) {
  SerialExecutor executor;
  WireBuffers buffers;
  for (const int senders : {1, 3, 2}) {
    const size_t n = 30u * static_cast<size_t>(senders);
    std::vector<uint8_t> wire;
    for (int s = 0; s < senders; ++s) Send(s, n, s, &wire);
    ASSERT_TRUE(buffers.Unpack(wire.data(), wire.size(), 1, /*splits=*/1, executor).ok());
    const std::vector<GradientSet>& sets = buffers.tables().front().sets;
    ASSERT_EQ(sets.size(), static_cast<size_t>(senders));
    for (int s = 0; s < senders; ++s) ExpectSet(sets[static_cast<size_t>(s)], s, n, s);
  }
}

TEST(WireBuffersTest, SplitsOfAllToAllsAreFoundWhereTheyEnd) {
  SerialExecutor executor;
  WireBuffers buffers;
  const std::vector<size_t> sizes = {4321, 1, 5000, 0, 4097};  // large buffers are not padded
  std::vector<uint8_t> wire;
  for (size_t s = 0; s < sizes.size(); ++s) Send(0, sizes[s], static_cast<int>(s), &wire, 3);
  ASSERT_TRUE(buffers.Unpack(wire.data(), wire.size(), 1, /*splits=*/3, executor).ok());
  const std::vector<GradientSet>& sets = buffers.tables().front().sets;
  ASSERT_EQ(sets.size(), sizes.size());
  for (size_t s = 0; s < sizes.size(); ++s) {
    ASSERT_EQ(sets[s].n, sizes[s]);
    if (sizes[s] == 0) continue;
    EXPECT_EQ(sets[s].keys[sizes[s] - 1], static_cast<int64_t>(sizes[s] - 1));
    EXPECT_EQ(sets[s].rows[2 * sizes[s] - 1], static_cast<float>(s));
  }
  EXPECT_FALSE(buffers.Unpack(wire.data(), wire.size(), 1, /*splits=*/1, executor).ok());
}

TEST(WireBuffersTest, RefusesSendersWithOtherTables) {
  SerialExecutor executor;
  WireBuffers buffers;
  std::vector<uint8_t> wire;
  Send(0, 3, 0, &wire);
  const Status status = buffers.Unpack(wire.data(), wire.size(), 2, /*splits=*/1, executor);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "sender 0 sent gradients of 1 tables. Expected: 2");
}

}  // namespace
}  // namespace tsps
