#include "core/wire/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/wire/wire_layout.h"
#include "executor/eigen_executor.h"

namespace tsps {
namespace {

constexpr WireType kTypes[] = {WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16};

// A table's gradients, owned.
struct Gradients {
  std::vector<int64_t> keys;
  std::vector<int32_t> counts;  // empty: not passed
  std::vector<float> rows;
  size_t dim;

  WireSet set() const {
    return {keys.data(), counts.empty() ? nullptr : counts.data(), rows.data(), keys.size(), dim};
  }
};

Gradients RandomGradients(size_t n, size_t dim, int32_t max_count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.01f);
  std::set<int64_t> keys = {INT64_MIN, INT64_MAX, -1, 0};
  while (keys.size() < n) keys.insert(static_cast<int64_t>(random() >> (random() % 64)));
  Gradients gradients = {{keys.begin(), keys.end()}, {}, {}, dim};
  std::shuffle(gradients.keys.begin(), gradients.keys.end(), random);
  gradients.keys.resize(n);
  for (size_t i = 0; max_count > 0 && i < n; ++i) {
    gradients.counts.push_back(1 +
                               static_cast<int32_t>(random() % static_cast<unsigned>(max_count)));
  }
  for (size_t i = 0; i < n * dim; ++i) gradients.rows.push_back(normal(random));
  return gradients;
}

std::vector<uint8_t> Packed(const std::vector<Gradients>& tables, WireType type,
                            Executor& executor) {
  std::vector<WireSet> sets;
  for (const Gradients& table : tables) sets.push_back(table.set());
  const Result<WirePacker> packer = WirePacker::Create(sets, type, executor);
  EXPECT_TRUE(packer.ok()) << packer.status().message();
  std::vector<uint8_t> buffer(packer->bytes(), 0xAB);
  packer->Write(buffer.data(), buffer.size(), executor);
  return buffer;
}

std::vector<uint8_t> Packed(const std::vector<Gradients>& tables, WireType type) {
  SerialExecutor executor;
  return Packed(tables, type, executor);
}

// Reads everything into arrays of exactly the right size.
Status ReadAll(const uint8_t* data, size_t size, std::vector<Gradients>* tables,
               Executor& executor) {
  const Result<WireReader> reader = WireReader::Open(data, size);
  if (!reader.ok()) return reader.status();
  for (size_t t = 0; t < reader->n_tables(); ++t) {
    const size_t n = reader->n(t), dim = reader->dim(t);
    EXPECT_LE(n * dim * WireTypeBytes(reader->type()), size);
    Gradients table = {std::vector<int64_t>(n), std::vector<int32_t>(n),
                       std::vector<float>(n * dim), dim};
    TSPS_RETURN_IF_ERROR(reader->Keys(t, table.keys.data()));
    TSPS_RETURN_IF_ERROR(reader->Counts(t, table.counts.data()));
    reader->Rows(t, table.rows.data(), executor);
    tables->push_back(std::move(table));
  }
  return Status();
}

Status ReadAll(const std::vector<uint8_t>& buffer, std::vector<Gradients>* tables) {
  SerialExecutor executor;
  // A copy of exactly this size, for AddressSanitizer.
  const std::vector<uint8_t> exact(buffer.begin(), buffer.end());
  return ReadAll(exact.data(), exact.size(), tables, executor);
}

Status ReadAll(const std::vector<uint8_t>& buffer) {
  std::vector<Gradients> tables;
  return ReadAll(buffer, &tables);
}

std::vector<uint32_t> BitsOf(const std::vector<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  if (!bits.empty()) std::memcpy(bits.data(), floats.data(), floats.size() * sizeof(float));
  return bits;
}

// Sorted by key, rows rounded to the type, counts filled in.
Gradients Expected(const Gradients& table, WireType type) {
  std::map<int64_t, size_t> positions;
  for (size_t i = 0; i < table.keys.size(); ++i) positions[table.keys[i]] = i;
  Gradients expected = {{}, {}, {}, table.dim};
  for (const auto& [key, i] : positions) {
    expected.keys.push_back(key);
    expected.counts.push_back(table.counts.empty() ? 1 : table.counts[i]);
    for (size_t d = 0; d < table.dim; ++d) {
      uint8_t wire[4];
      float rounded;
      NarrowFloats(type, &table.rows[i * table.dim + d], 1, wire);
      WidenFloats(type, wire, 1, &rounded);
      expected.rows.push_back(rounded);
    }
  }
  return expected;
}

void ExpectRoundTrip(const std::vector<Gradients>& tables, WireType type) {
  std::vector<Gradients> read;
  const Status status = ReadAll(Packed(tables, type), &read);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(read.size(), tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    const Gradients expected = Expected(tables[t], type);
    EXPECT_EQ(read[t].dim, expected.dim);
    EXPECT_EQ(read[t].keys, expected.keys);
    EXPECT_EQ(read[t].counts, expected.counts);
    EXPECT_EQ(BitsOf(read[t].rows), BitsOf(expected.rows));
  }
}

TEST(Wire, HasTheDocumentedBytes) {
  const std::vector<uint8_t> buffer = Packed(
      {{{7, -2, 4}, {1, 3, 2}, {7, 8, -2, 0.5f, 4, 0}, 2}, {{}, {}, {}, 5}}, WireType::kBfloat16);
  std::vector<uint8_t> expected = {'t', 's', 'p', 's', 'w', 'i', 'r', 'e'};
  const auto append = [&](std::initializer_list<int> bytes) {
    for (const int byte : bytes) expected.push_back(static_cast<uint8_t>(byte));
  };
  append({2, 0, 0, 0, 1, 0, 0, 0});    // version 2, bfloat16
  append({128, 0, 0, 0, 0, 0, 0, 0});  // rows begin
  append({192, 0, 0, 0, 0, 0, 0, 0});  // bytes: table 1 begins, and ends there
  append({2, 0, 0, 0});                // tables
  expected.insert(expected.end(), &buffer[36], &buffer[40]);  // checksum, below
  append({0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF});   // table 0: the first key, -2
  append({3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0});
  append({0, 0, 0, 0, 0, 0, 0, 0});  // table 1
  append({0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  append({3, 0b010101});  // differences of keys, less 1: 4 - -2 - 1 and 7 - 4 - 1
  append({2, 0b000110});  // counts 3, 2, 1
  expected.resize(128);
  append({0x00, 0xC0, 0x00, 0x3F, 0x80, 0x40, 0x00, 0x00, 0xE0, 0x40, 0x00, 0x41});
  expected.resize(192);
  EXPECT_EQ(buffer, expected);

  uint32_t crc;
  std::memcpy(&crc, &buffer[36], sizeof(crc));
  std::vector<uint8_t> covered(buffer.begin(), buffer.begin() + 36);
  covered.insert(covered.end(), buffer.begin() + 40, buffer.begin() + 128);
  EXPECT_EQ(crc, Crc32c(0, covered.data(), covered.size()));
}

TEST(Wire, GivesBackWhatWasPacked) {
  for (const WireType type : kTypes) {
    ExpectRoundTrip({}, type);
    ExpectRoundTrip({{{}, {}, {}, 64}}, type);
    ExpectRoundTrip({{{INT64_MIN}, {}, {1.5f}, 1}}, type);
    ExpectRoundTrip({{{INT64_MAX, INT64_MIN}, {INT32_MAX, 1}, {1, 2, 3, 4, 5, 6}, 3}}, type);
    ExpectRoundTrip({RandomGradients(5000, 17, 8, 1),
                     RandomGradients(1, 64, 0, 2),
                     {{}, {}, {}, 3},
                     RandomGradients(129, 1, INT32_MAX, 3),
                     RandomGradients(700, 64, 1, 4)},
                    type);
  }
}

TEST(Wire, Float32IsExactNansIncluded) {
  std::mt19937 random(1);
  Gradients table = RandomGradients(100, 8, 3, 5);
  std::vector<uint32_t> bits(table.rows.size());
  for (uint32_t& word : bits) word = static_cast<uint32_t>(random()) | 0x7F800000;
  bits[0] = 1;
  bits[1] = 0x80000000;
  std::memcpy(table.rows.data(), bits.data(), bits.size() * sizeof(float));
  std::vector<Gradients> read;
  ASSERT_TRUE(ReadAll(Packed({table}, WireType::kFloat32), &read).ok());
  std::multiset<uint32_t> sent(bits.begin(), bits.end());
  const std::vector<uint32_t> read_bits = BitsOf(read[0].rows);
  EXPECT_EQ(std::multiset<uint32_t>(read_bits.begin(), read_bits.end()), sent);
  ExpectRoundTrip({table}, WireType::kFloat32);
}

TEST(Wire, CodesKeysAndCountsInFewBytes) {
  const auto overhead = [](const Gradients& table) {
    const std::vector<uint8_t> buffer = Packed({table}, WireType::kFloat16);
    return buffer.size() - table.rows.size() * 2 - sizeof(WireHeader) - sizeof(WireTable);
  };
  Gradients table = {{}, {}, {}, 1};
  for (int64_t key = 0; key < 12800; ++key) table.keys.push_back(key * 3);
  table.rows.resize(table.keys.size());
  EXPECT_LE(overhead(table), 100 * (1 + 128 * 2 / 8) + 63);  // 2 bits for differences of 3 - 1
  table.counts.assign(table.keys.size(), 1);
  EXPECT_LE(overhead(table), 100 * (1 + 128 * 2 / 8) + 63);  // counts of 1 take no bytes
  table.counts[9] = 4;
  EXPECT_LE(overhead(table), 100 * (2 + 128 * 2 / 8) + 32 + 63);  // one block of 2 bits
}

TEST(Wire, HasTheSameBytesOnAnyThreads) {
  EigenExecutor parallel(4);
  std::vector<Gradients> tables;
  for (uint64_t t = 0; t < 30; ++t) {
    tables.push_back(RandomGradients(t % 7 == 3 ? 3000 : 20 + t, 1 + t * 5 % 64, 4, t));
  }
  for (const WireType type : kTypes) {
    const std::vector<uint8_t> buffer = Packed(tables, type, parallel);
    EXPECT_EQ(buffer, Packed(tables, type));
    std::vector<Gradients> a, b;
    ASSERT_TRUE(ReadAll(buffer, &a).ok());
    ASSERT_TRUE(ReadAll(buffer.data(), buffer.size(), &b, parallel).ok());
    for (size_t t = 0; t < tables.size(); ++t) EXPECT_EQ(a[t].rows, b[t].rows);
  }
}

TEST(Wire, IsReadAtAnyAddressAndWithAnyPadding) {
  SerialExecutor executor;
  const Gradients table = RandomGradients(300, 5, 4, 6);
  for (const WireType type : kTypes) {
    const std::vector<uint8_t> buffer = Packed({table}, type);
    for (size_t offset : {0, 1, 2, 7, 63}) {
      for (size_t padding : {0, 1, 1000}) {
        std::vector<uint8_t> moved(offset + buffer.size() + padding, 0xCD);
        std::copy(buffer.begin(), buffer.end(), moved.begin() + static_cast<long>(offset));
        std::vector<Gradients> read;
        ASSERT_TRUE(ReadAll(moved.data() + offset, moved.size() - offset, &read, executor).ok());
        EXPECT_EQ(read[0].rows, Expected(table, type).rows);
      }
    }
  }
}

TEST(WirePacker, FillsThePaddingWithZeros) {
  SerialExecutor executor;
  const Gradients table = RandomGradients(9, 3, 0, 7);
  const Result<WirePacker> packer = WirePacker::Create({table.set()}, WireType::kFloat16, executor);
  ASSERT_TRUE(packer.ok());
  std::vector<uint8_t> buffer(PaddedBytes(packer->bytes()) + 1, 0xAB);
  packer->Write(buffer.data(), buffer.size() - 1, executor);
  for (size_t i = packer->bytes(); i + 1 < buffer.size(); ++i) EXPECT_EQ(buffer[i], 0);
  EXPECT_EQ(buffer.back(), 0xAB);
}

TEST(WirePacker, RefusesWhatCannotBeSentAndNamesIt) {
  SerialExecutor executor;
  const auto message = [&](const WireSet& set) {
    const Gradients first = RandomGradients(3, 2, 0, 8);
    const Status status =
        WirePacker::Create({first.set(), set}, WireType::kFloat32, executor).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const int64_t keys[] = {5, 6, 5};
  const int32_t counts[] = {1, 0, 1};
  const float rows[6] = {};
  EXPECT_TRUE(has(message({keys, nullptr, rows, 3, 2}), "table 1 must be unique. Received: 5"));
  EXPECT_TRUE(has(message({keys, counts, rows, 2, 2}), "count of key 6 of table 1"));
  EXPECT_TRUE(has(message({keys, nullptr, rows, 2, 65537}), "dim of table 1"));
  EXPECT_TRUE(has(message({keys, nullptr, rows, 2, 65537}), "65537"));
  EXPECT_TRUE(has(message({keys, nullptr, rows, size_t{1} << 31, 2}), "2147483648"));
}

TEST(PaddedBytes, AreFewAndNotMuchMore) {
  std::set<size_t> sizes;
  size_t previous = 0;
  for (size_t bytes = 0; bytes < 1 << 20; ++bytes) {
    const size_t padded = PaddedBytes(bytes);
    ASSERT_GE(padded, std::max<size_t>(256, bytes));
    ASSERT_GE(padded, previous);
    ASSERT_EQ(padded % 64, 0u);
    ASSERT_EQ(PaddedBytes(padded), padded);
    if (bytes >= 1024) {
      ASSERT_LT(16 * (padded - bytes), bytes) << bytes;
    } else if (bytes > 256) {
      ASSERT_LT(padded - bytes, 64u);
    }
    sizes.insert(previous = padded);
  }
  EXPECT_EQ(sizes.size(), 13u + 10 * 16);  // 256, 320, ..., 1024, then 16 per power of two
  for (int log2 = 20; log2 < 62; ++log2) {
    for (const size_t bytes : {(size_t{1} << log2) + 1, (size_t{1} << log2) / 16 * 25 + 1}) {
      EXPECT_EQ(PaddedBytes(bytes), bytes - 1 + (size_t{1} << (log2 - 4)));
    }
    EXPECT_EQ(PaddedBytes(size_t{1} << log2), size_t{1} << log2);
  }
}

TEST(PaddedBytes, OfLargeSplitsAreMultiplesOf64) {
  size_t previous = 0;
  for (size_t bytes = 0; bytes < 1 << 18; ++bytes) {
    const size_t padded = PaddedBytes(bytes, 3);
    ASSERT_GE(padded, previous);
    ASSERT_EQ(PaddedBytes(padded, 3), padded);
    ASSERT_EQ(padded, bytes < 16 << 10 ? PaddedBytes(bytes) : (bytes + 63) / 64 * 64) << bytes;
    previous = padded;
  }
}

// --- Damage. ---

class WireDamage : public ::testing::TestWithParam<WireType> {
 protected:
  std::vector<uint8_t> buffer_ = Packed(
      {RandomGradients(150, 3, 5, 1), {{}, {}, {}, 2}, RandomGradients(9, 2, 3, 2)}, GetParam());

  WireHeader Header() const {
    WireHeader header;
    std::memcpy(&header, buffer_.data(), sizeof(header));
    return header;
  }
  // Returns the buffer with some bytes replaced and a valid checksum.
  template <typename T>
  std::vector<uint8_t> Forged(size_t offset, T value) const {
    std::vector<uint8_t> forged = buffer_;
    std::memcpy(&forged[offset], &value, sizeof(value));
    FixChecksum(&forged);
    return forged;
  }
  static void FixChecksum(std::vector<uint8_t>* buffer) {
    WireHeader header;
    std::memcpy(&header, buffer->data(), sizeof(header));
    if (header.rows_begin < sizeof(header) || header.rows_begin > buffer->size()) return;
    header.crc = WireCrc(buffer->data(), header.rows_begin);
    std::memcpy(buffer->data(), &header, sizeof(header));
  }
  static size_t TableField(size_t table, size_t offset) {
    return sizeof(WireHeader) + table * sizeof(WireTable) + offset;
  }
  static bool Refused(const std::vector<uint8_t>& buffer, const std::string& expected) {
    const Status status = ReadAll(buffer);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    const bool matches = status.message().find(expected) != std::string::npos;
    if (!matches) ADD_FAILURE() << '"' << status.message() << "\" has no \"" << expected << '"';
    return matches;
  }
};

TEST_P(WireDamage, IsNoticedWithAnyByteBeforeTheRowsChanged) {
  ASSERT_TRUE(ReadAll(buffer_).ok());
  for (size_t i = 0; i < buffer_.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<uint8_t> changed = buffer_;
      changed[i] = static_cast<uint8_t>(changed[i] ^ 1 << bit);
      const Status status = ReadAll(changed);
      if (i < Header().rows_begin) {
        ASSERT_EQ(status.code(), Code::kDataLoss) << "byte " << i;
      } else {
        ASSERT_TRUE(status.ok());  // the control: rows have no checksum
      }
    }
  }
}

TEST_P(WireDamage, IsNoticedAtEveryShorterLength) {
  for (size_t n = 0; n < buffer_.size(); ++n) {
    const std::vector<uint8_t> cut(buffer_.begin(), buffer_.begin() + static_cast<long>(n));
    ASSERT_TRUE(Refused(cut, "truncated")) << n;
  }
}

TEST_P(WireDamage, ForgedHeadersAreRefused) {
  const WireHeader header = Header();
  ASSERT_TRUE(ReadAll(Forged(8, uint32_t{1})).ok());  // the control: nothing has changed
  EXPECT_TRUE(Refused(Forged(0, 'x'), "foreign"));
  EXPECT_TRUE(Refused(Forged(8, uint32_t{0}), "version 0"));
  EXPECT_TRUE(Refused(Forged(8, uint32_t{3}), "newer gradient buffer: it has format version 3"));
  for (const uint32_t type : {3u, ~0u}) EXPECT_TRUE(Refused(Forged(12, type), "unknown wire type"));
  for (const uint64_t begin : {uint64_t{0}, uint64_t{39}}) {
    EXPECT_TRUE(Refused(Forged(16, begin), "inside of the header"));
  }
  EXPECT_TRUE(Refused(Forged(16, uint64_t{40}), "3 tables do not fit before byte 40"));
  EXPECT_TRUE(Refused(Forged(16, header.rows_begin - 64), ""));
  EXPECT_TRUE(Refused(Forged(16, header.rows_begin - 1), "rows begin at"));
  EXPECT_TRUE(Refused(Forged(16, header.rows_begin + 64), ""));
  for (const uint64_t huge : {uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 63}) {
    EXPECT_TRUE(Refused(Forged(16, huge), "rows begin at"));
    EXPECT_TRUE(Refused(Forged(24, huge), "truncated"));
  }
  for (const uint64_t bytes : {uint64_t{0}, header.rows_begin, header.bytes - 1}) {
    EXPECT_TRUE(Refused(Forged(24, bytes), "end at byte"));
  }
  std::vector<uint8_t> longer = Forged(24, header.bytes + 1);
  longer.push_back(0);
  EXPECT_TRUE(Refused(longer, "rows end at byte"));
  for (const uint32_t tables : {0u, 1u, 2u, 4u, 0x08000001u, ~0u}) {
    EXPECT_TRUE(Refused(Forged(32, tables), ""));
  }
}

TEST_P(WireDamage, ForgedTablesAreRefused) {
  for (const size_t t : {0, 1, 2}) {
    for (const uint32_t n : {0x80000000u, 0xFFFFFFFFu}) {
      EXPECT_TRUE(Refused(Forged(TableField(t, 8), n), "rows of"));
    }
    for (const uint32_t n : {1u, 8u, 10u, 149u, 151u, 1u << 20, 0x7FFFFFFFu}) {
      EXPECT_TRUE(Refused(Forged(TableField(t, 8), n), ""));
    }
    for (const uint32_t dim : {65537u, ~0u}) {
      EXPECT_TRUE(Refused(Forged(TableField(t, 12), dim), "rows of"));
    }
    for (const uint64_t bytes :
         {uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{0} - 100}) {
      EXPECT_TRUE(Refused(Forged(TableField(t, 16), bytes), "keys of table"));
      EXPECT_TRUE(Refused(Forged(TableField(t, 24), bytes), "counts of table"));
    }
  }
  EXPECT_TRUE(Refused(Forged(TableField(0, 12), uint32_t{4}), "rows of table 0 end at byte"));
  EXPECT_TRUE(Refused(Forged(TableField(0, 12), uint32_t{2}), "rows end at byte"));
  EXPECT_TRUE(Refused(Forged(TableField(0, 24), uint64_t{0}), ""));
  const size_t widths = TableField(3, 0);  // of table 0's keys
  EXPECT_TRUE(Refused(Forged(widths, uint8_t{65}), "keys of table 0: the numbers of block 0"));
  EXPECT_TRUE(Refused(Forged(widths, uint8_t{0}), "keys of table 0 have"));
}

TEST_P(WireDamage, KeysThatWrapAroundAndCountsBeyondInt32AreRefused) {
  EXPECT_TRUE(Refused(Forged(TableField(0, 0), int64_t{5}), "keys of table 0 do not ascend"));
  // The largest count, and one more.
  buffer_ = Packed({{{1, 2}, {INT32_MAX, 2}, {1, 2}, 1}}, GetParam());
  const size_t counts = TableField(1, 0) + 1;  // the one difference has no bits
  ASSERT_EQ(buffer_[counts], 31);
  ASSERT_EQ(buffer_[counts + 1], 0xFE);
  EXPECT_TRUE(Refused(Forged(counts + 1, uint8_t{0xFF}), "count of table 0"));
}

TEST_P(WireDamage, OfAnyKindNeverLeadsOutOfTheBuffer) {
  std::mt19937 random(1);
  size_t read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> changed = buffer_;
    const size_t head = Header().rows_begin;
    for (size_t j = 0, n = 1 + random() % 3; j < n; ++j) {
      // Mostly in the header and the tables' entries.
      const size_t range = random() % 4 == 0 ? head : TableField(3, 0);
      changed[random() % range] = static_cast<uint8_t>(random() % 3 == 0 ? random() % 4 : random());
    }
    if (random() % 4 == 0) changed.resize(random() % (changed.size() + 100));
    if (changed.size() >= sizeof(WireHeader)) {
      std::copy(buffer_.begin(), buffer_.begin() + 8, changed.begin());
      FixChecksum(&changed);
    }
    const Status status = ReadAll(changed);
    ASSERT_TRUE(status.ok() || status.code() == Code::kDataLoss) << status.message();
    read += status.ok();
  }
  EXPECT_GT(read, 0u);  // some changes, for example of a key, give other valid gradients
}

INSTANTIATE_TEST_SUITE_P(, WireDamage, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return WireTypeName(info.param); });

}  // namespace
}  // namespace tsps
