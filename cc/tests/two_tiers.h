// A record store and its two tiers, as tests use them.
#ifndef TFSPS_TESTS_TWO_TIERS_H_
#define TFSPS_TESTS_TWO_TIERS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fault_point.h"
#include "core/os/directory.h"
#include "core/tier/record_store.h"
#include "tests/group_fixture.h"
#include "tests/temp_dir.h"

namespace tsps {

// The record store of a table. The tests keep the rows that are in memory in a map, and the number
// of the published mutation in a file.
class TwoTiers {
 public:
  static constexpr size_t kPayload = 60;  // 72 bytes a record
  static constexpr uint64_t kSeed = 5;

  explicit TwoTiers(const TempDir& dir, size_t file_bytes = 64 * 1024,
                    const std::string& disk = "disk")
      : shared_(dir / "shared"), disk_(dir / disk), file_bytes_(file_bytes) {
    auto threads = IoThreads::Start(4, 64 * 1024);
    EXPECT_TRUE(threads.ok());
    threads_ = std::move(*threads);
  }

  Status Create() {
    TSPS_RETURN_IF_ERROR(MakePrivateDirectory(shared_));
    TSPS_RETURN_IF_ERROR(MakePrivateDirectory(disk_));
    TSPS_ASSIGN_OR_RETURN(
        store_, RecordStore::Create(shared_, disk_, Layout(), kSeed, {cache_bytes_, 0}, *threads_));
    return {};
  }
  Status Open() {
    store_.reset();
    TSPS_ASSIGN_OR_RETURN(
        store_, RecordStore::Open(shared_, disk_, Layout(), kSeed, {cache_bytes_, 0}, *threads_));
    return {};
  }

  RecordLayout Layout() const {
    return RecordLayout("0123456789abcdef0123456789abcdef", kPayload, file_bytes_);
  }
  static void Fill(int64_t key, uint32_t version, char* payload) {
    for (size_t i = 0; i < kPayload; ++i) {
      payload[i] = static_cast<char>(key * 13 + version * 5 + static_cast<int64_t>(i));
    }
  }

  // Returns the version of a row's payload; UINT32_MAX if it is no payload of this key.
  static uint32_t VersionOf(int64_t key, const char* payload) {
    for (uint32_t version = 0; version < 256; ++version) {
      char expected[kPayload];
      Fill(key, version, expected);
      if (std::memcmp(payload, expected, kPayload) == 0) return version;
    }
    return UINT32_MAX;
  }

  // Makes a mutation: the rows of `leaving` (key and version) move to disk, those of `entering`
  // move to memory.
  Status Mutate(const std::vector<int64_t>& entering,
                const std::vector<std::pair<int64_t, uint32_t>>& leaving, bool publish,
                const std::function<void()>& published = nullptr, bool scans = false) {
    std::vector<uint32_t> places(entering.size());
    TSPS_RETURN_IF_ERROR(store_->Read(entering.data(), entering.size(), true, places.data(),
                                      [](size_t, const char*) {}));
    TSPS_RETURN_IF_ERROR(store_->Leave({entering.data(), places.data(), entering.size()},
                                       leaving.size(), [&](size_t i, char* payload) {
                                         Fill(leaving[i].first, leaving[i].second, payload);
                                         return leaving[i].first;
                                       }));
    store_->Declare();
    if (!scans) store_->PlaceCopies();
    TSPS_FAULT_POINT("test_declared");
    if (publish && published) published();
    TSPS_FAULT_POINT("test_published");
    store_->Finish(publish);
    if (!scans) store_->RemoveEmptied();
    return {};
  }

  // Makes mutations that move only the records that compaction copies.
  Status Compact(int slices, size_t bytes) {
    for (int slice = 0; slice < slices; ++slice) {
      store_->CompactAhead(bytes);
      store_->AwaitCompaction();
      TSPS_RETURN_IF_ERROR(Mutate({}, {}, true));
    }
    return {};
  }

  // The version of each key's row. Keys that have no row are left out.
  std::map<int64_t, uint32_t> Versions(const std::vector<int64_t>& keys) {
    std::vector<uint32_t> places(keys.size());
    std::vector<uint32_t> versions(keys.size(), UINT32_MAX);
    const Status status = store_->Read(
        keys.data(), keys.size(), false, places.data(),
        [&](size_t i, const char* payload) { versions[i] = VersionOf(keys[i], payload); });
    EXPECT_TRUE(status.ok()) << status.message();
    std::map<int64_t, uint32_t> found_versions;
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(places[i] == kNoRecord, versions[i] == UINT32_MAX) << keys[i];
      if (versions[i] != UINT32_MAX) found_versions[keys[i]] = versions[i];
    }
    return found_versions;
  }

  void NoCache() { cache_bytes_ = 0; }
  RecordStore& store() { return *store_; }
  const std::string& disk() const { return disk_; }
  const std::string& shared() const { return shared_; }

 private:
  const std::string shared_, disk_;
  const size_t file_bytes_;
  size_t cache_bytes_ = 64 * 1024;
  std::unique_ptr<IoThreads> threads_;
  std::unique_ptr<RecordStore> store_;
};

// Returns the keys 0 to n - 1.
inline std::vector<int64_t> Range(int64_t n) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < n; ++key) keys.push_back(key);
  return keys;
}

}  // namespace tsps

#endif  // TFSPS_TESTS_TWO_TIERS_H_
