// Crash consistency of a table with planes of three widths: the embedding, a slot and two planes of
// metadata. Its writer is killed in the middle of mutations. Three states must then equal, bit for
// bit, a plain model of the committed mutations: the rows that a reader sees, the rows that the
// next writer recovers, and the rows of a fresh table into which a sparse-parameter file was
// loaded.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/files/parameter_file.h"
#include "core/group/scan.h"
#include "tests/group_fixture.h"
#include "tests/killed_at.h"

#ifdef TFSPS_FAULT_POINTS

namespace tsps {
namespace {

constexpr int kMutations = 24;
constexpr size_t kDim = 6;  // too small for partial sums: squares are added one by one
constexpr float kStart = 0.25f;
constexpr float kHyper[] = {0.5f, 1e-3f};
constexpr uint32_t kFirstCount = 7;
constexpr int64_t kFirstUse = -1;

// Maps each key to the bytes of its row in all planes, in the order of the list, except for the
// planes of the key and the change generation.
using Content = std::map<int64_t, std::string>;

template <typename T>
void Put(const std::vector<T>& values, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// --- The mutations. Each depends on its number alone. ---

enum class MutationKind { kStep, kAssign, kAssignCount, kErase };

MutationKind KindOf(int i) {
  if (i % 4 < 2) return MutationKind::kStep;
  if (i % 4 == 2) return MutationKind::kAssign;
  return i % 8 == 3 ? MutationKind::kAssignCount : MutationKind::kErase;
}

// The keys of mutation i. Half of them are from a few hundred that are used again and again; the
// other half makes the index grow.
std::vector<int64_t> KeysOf(int i) {
  std::mt19937_64 random(static_cast<uint64_t>(i) * 977 + 5);
  std::set<int64_t> keys;
  for (int k = 0; k < 600; ++k) {
    keys.insert(static_cast<int64_t>(random() % (k % 2 == 0 ? 300 : 60000)) * 7919);
  }
  return {keys.begin(), keys.end()};
}

// A number that depends on the key, the mutation and the element.
float NumberOf(int64_t key, int i, size_t d) {
  return static_cast<float>((key % 1009 * 31 + i * 7 + static_cast<int64_t>(d) * 13) % 2001 -
                            1000) /
         1000;
}
uint32_t CountOf(int64_t key, int i) { return static_cast<uint32_t>(key % 1009) << (i % 20); }
int64_t UseOf(int64_t key, int i) { return -(key << 20) - i; }

// --- The model. ---

class Model {
 public:
  explicit Model(OptimizerKind kind) : kind_(kind) {}

  void Apply(int i) {
    for (const int64_t key : KeysOf(i)) {
      if (KindOf(i) == MutationKind::kErase) {
        rows_.erase(key);
        continue;
      }
      Row& row = RowOf(key);
      if (KindOf(i) == MutationKind::kAssign) {
        for (size_t d = 0; d < kDim; ++d) row.values[d] = NumberOf(key, i, d);
        for (size_t d = 0; d < row.slot.size(); ++d) row.slot[d] = 1 + NumberOf(key, i, d);
        row.use = UseOf(key, i);
      }
      if (KindOf(i) == MutationKind::kStep) {
        Update(key, i, &row);
      } else {
        row.count = CountOf(key, i);
      }
    }
  }

  Content Bytes() const {
    Content content;
    for (const auto& [key, row] : rows_) {
      Put(row.values, &content[key]);
      Put(row.slot, &content[key]);
      Put(std::vector<uint32_t>{row.count}, &content[key]);
      Put(std::vector<int64_t>{row.use}, &content[key]);
    }
    return content;
  }

 private:
  struct Row {
    std::vector<float> values = std::vector<float>(kDim);
    std::vector<float> slot;
    uint32_t count = kFirstCount;
    int64_t use = kFirstUse;
  };

  Row& RowOf(int64_t key) {
    const auto [entry, is_new] = rows_.try_emplace(key);
    if (is_new) {
      InitialRow(MakeConfig("t", kDim).initializer, key, kDim, entry->second.values.data());
      entry->second.slot.assign(kind_ == OptimizerKind::kAdagrad ? kDim : 1, kStart);
    }
    return entry->second;
  }

  void Update(int64_t key, int i, Row* row) const {
    float squares = 0;
    for (size_t d = 0; d < kDim; ++d) squares += NumberOf(key, i, d) * NumberOf(key, i, d);
    if (kind_ == OptimizerKind::kRowWiseAdagrad) row->slot[0] += squares / kDim;
    for (size_t d = 0; d < kDim; ++d) {
      const float g = NumberOf(key, i, d);
      if (kind_ == OptimizerKind::kAdagrad) {
        row->slot[d] += g * g;
        row->values[d] -= kHyper[0] * g / std::sqrt(row->slot[d] + kHyper[1]);
      } else {
        row->values[d] -= kHyper[0] / (std::sqrt(row->slot[0]) + kHyper[1]) * g;
      }
    }
  }

  const OptimizerKind kind_;
  std::map<int64_t, Row> rows_;
};

// --- The table. ---

TableConfig Config() {
  TableConfig config = MakeConfig("t", kDim);
  config.metadata = {{"count", PlaneType::kUint32, 1, kFirstCount},
                     {"last_used", PlaneType::kInt64, 1, static_cast<uint64_t>(kFirstUse)}};
  return config;
}

Status MakeTable(const std::string& path, OptimizerKind kind) {
  TSPS_ASSIGN_OR_RETURN(const auto group, Group::Create(path, kUuid));
  TSPS_ASSIGN_OR_RETURN(const auto writer, group->OpenWriter());
  TSPS_ASSIGN_OR_RETURN(const int table, writer->CreateTable(Config()));
  OptimizerConfig optimizer;
  optimizer.kind = kind;
  optimizer.slot_init[0] = kStart;
  return writer->BindOptimizer(table, optimizer, false);
}

Status Mutate(Group& group, GroupWriter& writer, OptimizerKind kind, int i) {
  SerialExecutor serial;
  const std::vector<int64_t> keys = KeysOf(i);
  if (KindOf(i) == MutationKind::kErase) return writer.Erase(0, keys.data(), keys.size()).status();
  const size_t width = SlotWidth(kind, 0, kDim);
  std::vector<float> rows, slots;
  std::vector<uint32_t> counts;
  std::vector<int64_t> uses;
  for (const int64_t key : keys) {
    for (size_t d = 0; d < kDim; ++d) rows.push_back(NumberOf(key, i, d));
    for (size_t d = 0; d < width; ++d) slots.push_back(1 + NumberOf(key, i, d));
    counts.push_back(CountOf(key, i));
    uses.push_back(UseOf(key, i));
  }
  if (KindOf(i) == MutationKind::kStep) {
    const TableUpdate update = {0, keys.data(), rows.data(), keys.size(), kHyper, 2};
    return writer.ApplyStep(group.step() + 1, {update}, serial);
  }
  std::vector<PlaneValues> planes = {{PlaneRole::kMetadata, "count", 4, counts.data()}};
  if (KindOf(i) == MutationKind::kAssign) {
    planes.push_back({PlaneRole::kMetadata, "last_used", 8, uses.data()});
    planes.push_back({PlaneRole::kSlot, "accumulator", 4 * width, slots.data()});
    planes.push_back({PlaneRole::kEmbedding, "embedding", 4 * kDim, rows.data()});
  }
  return writer.Assign(0, keys.data(), planes, keys.size(), serial);
}

// The number of committed mutations, including those that made the table.
uint64_t CommittedBy(Group& group) { return group.Info().step + group.Info().version; }

// The rows of an open table with the planes of `info`.
Content ReadContent(Group& group, const ParameterFileInfo& info) {
  Content content;
  const std::vector<Plane> planes = PlanesOf(info);
  const Status read = group.Read([&](const ReadView& view) {
    content.clear();
    VisitRows(view, 0, [&](int64_t key, uint32_t row) {
      std::string& bytes = content[key];
      for (size_t p = 0; p < planes.size(); ++p) {
        const size_t trained = planes.size() - info.metadata.size();
        const char* const at =
            p < trained ? view.Plane(0, p, row) : view.Metadata(0, p - trained, row);
        bytes.resize(bytes.size() + planes[p].row_bytes);
        if (at == nullptr) continue;
        RacyRead(&bytes[bytes.size() - planes[p].row_bytes], at, planes[p].row_bytes);
      }
    });
    return Status();
  });
  EXPECT_TRUE(read.ok()) << read.message();
  return content;
}

Status Save(const Content& content, const ParameterFileInfo& info, const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(const auto file, ParameterFileWriter::Create(path, info));
  for (const auto& [key, bytes] : content) {
    std::vector<const void*> values;
    size_t offset = 0;
    for (const Plane& plane : PlanesOf(info)) {
      values.push_back(bytes.data() + offset);
      offset += plane.row_bytes;
    }
    TSPS_RETURN_IF_ERROR(file->Append(&key, values.data(), 1));
  }
  return file->Finish();
}

// Loads a file into an empty table that has its planes.
Status Load(const std::string& path, GroupWriter& writer) {
  SerialExecutor serial;
  TSPS_ASSIGN_OR_RETURN(const auto file, ParameterFileReader::Open(path));
  const std::vector<Plane> planes = PlanesOf(file->info());
  for (size_t block = 0; block < file->n_blocks(); ++block) {
    const size_t n = file->rows_in_block(block);
    std::vector<int64_t> keys(n);
    std::vector<std::string> bytes;
    std::vector<void*> data;
    std::vector<PlaneValues> values;
    for (const Plane& plane : planes) bytes.emplace_back(n * plane.row_bytes, '\0');
    for (size_t p = 0; p < planes.size(); ++p) {
      data.push_back(bytes[p].data());
      values.push_back({planes[p].role, planes[p].name, planes[p].row_bytes, bytes[p].data()});
    }
    TSPS_RETURN_IF_ERROR(file->ReadBlock(block, keys.data(), data.data()));
    TSPS_RETURN_IF_ERROR(writer.Assign(0, keys.data(), values, n, serial));
  }
  return Status();
}

// The rows of a table, read by a scan.
Content ContentOfScan(Scan& scan) {
  constexpr size_t kBlock = 100;
  Content content;
  const int table = scan.tables().front();
  const PlaneList& list = scan.Planes(table);
  std::vector<int64_t> keys(kBlock);
  std::vector<std::string> values;
  char* planes[kMaxPlanes] = {};
  for (size_t p = 0; p < list.planes.size(); ++p) {
    values.emplace_back(kBlock * list.planes[p].row_bytes, '\0');
    const PlaneRole role = list.planes[p].role;
    if (role != PlaneRole::kKey && role != PlaneRole::kChanged) planes[p] = values[p].data();
  }
  while (true) {
    const auto n = scan.Next(table, kBlock, keys.data(), planes);
    EXPECT_TRUE(n.ok()) << n.status().message();
    if (!n.ok() || *n == 0) return content;
    for (size_t i = 0; i < *n; ++i) {
      std::string& row = content[keys[i]];
      for (size_t p = 0; p < list.planes.size(); ++p) {
        const size_t bytes = list.planes[p].row_bytes;
        if (planes[p] != nullptr) row.append(values[p], i * bytes, bytes);
      }
    }
  }
}

class PlanesCrash : public ::testing::Test {
 protected:
  explicit PlanesCrash(OptimizerKind kind) : kind_(kind) {}
  void SetUp() override {
    Model model(kind_);
    for (int i = 0; i < kMutations; ++i) {
      expected_.push_back(model.Bytes());
      model.Apply(i);
    }
    expected_.push_back(model.Bytes());
    ASSERT_TSPS_OK(MakeTable(path_, kind_));
    first_ = CommittedBy(**Group::Open(path_));
    info_.dim = kDim;
    info_.optimizer.kind = kind_;
    info_.optimizer.slot_init[0] = kStart;
    info_.initializer = Config().initializer;
    info_.metadata = Config().metadata;
  }

  // Opens the table as its writer and makes the rest of the mutations.
  void Work() const {
    auto group = Group::Open(path_);
    if (!group.ok()) _exit(10);
    auto writer = (*group)->OpenWriter();
    if (!writer.ok()) _exit(11);
    for (auto i = static_cast<int>(CommittedBy(**group) - first_); i < kMutations; ++i) {
      if (!Mutate(**group, **writer, kind_, i).ok()) _exit(12);
    }
  }

  // Expects that the table equals the model after the committed mutations.
  void ExpectWhole(Group& group, const std::string& when) {
    const uint64_t done = CommittedBy(group) - first_;
    ASSERT_LE(done, static_cast<uint64_t>(kMutations)) << when;
    EXPECT_TRUE(ReadContent(group, info_) == expected_[done]) << when << ": torn at " << done;
    auto scan = Scan::Begin(group, {});
    ASSERT_TRUE(scan.ok()) << when << ": " << scan.status().message();
    EXPECT_TRUE(ContentOfScan(**scan) == expected_[done]) << when << ": torn by a scan at " << done;
  }

  // Saves the rows to a file, and expects that a fresh table has them after it has loaded the file.
  void ExpectSaved(Group& group, const std::string& when) {
    const Content content = ReadContent(group, info_);
    info_.n_rows = content.size();
    info_.step = group.step();
    ASSERT_TSPS_OK(Save(content, info_, file_));
    TempDir dir;
    ASSERT_TSPS_OK(MakeTable(dir / "fresh", kind_));
    auto fresh = Group::Open(dir / "fresh");
    ASSERT_TRUE(fresh.ok()) << fresh.status().message();
    auto writer = (*fresh)->OpenWriter();
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TSPS_OK(Load(file_, **writer));
    ASSERT_TSPS_OK((*writer)->Verify());
    EXPECT_TRUE(ReadContent(**fresh, info_) == content) << when << ": the loaded rows differ";
  }

  TempDir dir_;
  const OptimizerKind kind_;
  const std::string path_ = dir_ / "g", file_ = dir_ / "t.tfsps";
  std::vector<Content> expected_;
  uint64_t first_ = 0;
  ParameterFileInfo info_;
};

class PlanesCrashTest
    : public PlanesCrash,
      public ::testing::WithParamInterface<std::tuple<OptimizerKind, const char*>> {
 protected:
  PlanesCrashTest() : PlanesCrash(std::get<0>(GetParam())) {}
};

TEST_P(PlanesCrashTest, EveryPlaneIsThatOfTheCommittedMutations) {
  const std::string point = std::get<1>(GetParam());
  int kills = 0;
  std::shared_ptr<Group> scan_group = *Group::Open(path_);
  std::unique_ptr<Scan> scan;  // begins before a writer and ends after the recovery from its kill
  const auto begin_scan = [&] { scan = std::move(*Scan::Begin(*scan_group, {})); };
  begin_scan();
  for (long n = 1; KilledAt(point, n, [&] { Work(); }); n += 1 + n) {
    ++kills;
    const std::string when = point + ":" + std::to_string(n);
    {
      auto reader = Group::Open(path_);
      ASSERT_TRUE(reader.ok()) << when << ": " << reader.status().message();
      ExpectWhole(**reader, when + ", seen by a reader");
    }
    KilledAt("recovery.row", 50 * kills, [&] {  // if the recovery is long enough
      auto group = Group::Open(path_);
      auto writer = (*group)->OpenWriter();
    });
    auto group = Group::Open(path_);
    ASSERT_TRUE(group.ok()) << when << ": " << group.status().message();
    auto writer = (*group)->OpenWriter();
    ASSERT_TRUE(writer.ok()) << when << ": " << writer.status().message();
    ASSERT_TSPS_OK((*writer)->Verify());
    ExpectWhole(**group, when + ", after recovery");
    ExpectSaved(**group, when);
    EXPECT_TRUE(ContentOfScan(*scan) == expected_[scan->step() + scan->version() - first_]) << when;
    begin_scan();
    if (HasFailure()) return;
  }
  auto group = Group::Open(path_);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(CommittedBy(**group) - first_, static_cast<uint64_t>(kMutations));
  ExpectWhole(**group, "at the end");
  ExpectSaved(**group, "at the end");
  EXPECT_GE(kills, 2) << "the writer passes the point too rarely";
}

INSTANTIATE_TEST_SUITE_P(
    Points, PlanesCrashTest,
    ::testing::Combine(::testing::Values(OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad),
                       ::testing::Values("undo.record", "begin.odd", "apply.row", "assign.row",
                                         "erase.entry", "commit.insert", "publish.record")),
    [](const auto& info) {
      std::string point = std::get<1>(info.param);
      std::replace(point.begin(), point.end(), '.', '_');
      return std::string(OptimizerKindName(std::get<0>(info.param))) + "_" + point;
    });

class PlanesCrashControl : public PlanesCrash {
 protected:
  PlanesCrashControl() : PlanesCrash(OptimizerKind::kRowWiseAdagrad) {}
};

// The control of these tests: without the undo log, a kill in an assign of counts is visible.
TEST_F(PlanesCrashControl, WithoutTheUndoLogCountsAreTorn) {
  ASSERT_TRUE(KindOf(2) == MutationKind::kAssign && KindOf(3) == MutationKind::kAssignCount);
  const size_t n = KeysOf(2).size() + KeysOf(3).size() - 1;
  ASSERT_TRUE(KilledAt("assign.row", static_cast<long>(n), [&] { Work(); }));
  const auto recover = [&] {
    auto group = Group::Open(path_);
    auto writer = (*group)->OpenWriter();
    if (CommittedBy(**group) - first_ != 3) _exit(13);
    if (!(ReadContent(**group, info_) == expected_[3])) kill(getpid(), SIGKILL);
  };
  setenv("TFSPS_FAULT_OFF", "undo", 1);
  const std::filesystem::path copy = path_ + "-copy";
  std::filesystem::copy(path_, copy, std::filesystem::copy_options::recursive);
  const bool torn = KilledAt("none", 1, recover);
  unsetenv("TFSPS_FAULT_OFF");
  EXPECT_TRUE(torn);
  std::filesystem::remove_all(path_);
  std::filesystem::rename(copy, path_);
  EXPECT_FALSE(KilledAt("none", 1, recover)) << "the undo log does not restore the counts";
}

}  // namespace
}  // namespace tsps

#endif  // TFSPS_FAULT_POINTS
