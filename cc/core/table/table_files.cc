#include "core/table/table_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/key_owner.h"
#include "core/os/directory.h"
#include "core/table/index.h"
#include "core/table/table_checks.h"

namespace tsps {
namespace {

constexpr size_t kFirstDirectoryBytes = kPageBytes;
constexpr size_t kMaxDirectoryBytes = (size_t{2} << kMaxDepth) * sizeof(uint32_t);

// Bounds of the files of a table with `rows` row numbers. For the index it is four times what
// hashing ever needs (20 to 57 bytes per row), because keys may be chosen to collide, or be added
// and erased again.
size_t MaxSegmentBytes(size_t rows) { return std::max<size_t>(64u << 20, 256 * rows); }
size_t MaxFreeBytes(size_t rows) { return rows * sizeof(uint32_t); }
size_t MaxErasedBytes(size_t rows) { return TableFiles::MaxErased(rows) * sizeof(ErasedKey); }

TableFileHeader HeaderOf(const TableConfig& config) {
  TableFileHeader header = {};
  header.magic = kTableMagic;
  header.version = kFormatVersion;
  header.layout_hash = TableLayoutHash();
  std::memcpy(header.uuid, config.uuid.data(), sizeof(header.uuid));
  header.dim = config.dim;
  header.key_limit = config.key_limit;
  header.max_rows = config.max_rows;
  header.initializer = static_cast<uint32_t>(config.initializer.kind);
  header.initializer_a = config.initializer.a;
  header.initializer_b = config.initializer.b;
  header.seed = config.initializer.seed;
  header.salt = config.initializer.salt;
  header.row_type = static_cast<uint32_t>(config.row_type);
  header.rounding = static_cast<uint32_t>(config.rounding);
  header.node = config.shard.node;
  header.nodes = config.shard.nodes;
  header.owner_seed = config.shard.whole() ? 0 : kOwnerSeed;
  header.crc = HeaderCrc(header);
  return header;
}

Result<TableConfig> ConfigFrom(const TableFileHeader& header, const std::string& path,
                               const std::string& name) {
  if (header.magic != kTableMagic)
    return Error(Code::kDataLoss, path, " is not a table's config file");
  TSPS_RETURN_IF_ERROR(CheckFormat(header.version, header.layout_hash, TableLayoutHash(), path));
  if (header.crc != HeaderCrc(header))
    return Error(Code::kDataLoss, path, " is damaged: checksum mismatch");
  TableConfig config;
  config.name = name;
  config.uuid.assign(header.uuid, sizeof(header.uuid));
  config.dim = header.dim;
  config.key_limit = header.key_limit;
  config.max_rows = header.max_rows;
  config.initializer.kind = static_cast<InitializerKind>(header.initializer);
  config.initializer.a = header.initializer_a;
  config.initializer.b = header.initializer_b;
  config.initializer.seed = header.seed;
  config.initializer.salt = header.salt;
  if (config.dim < 1 || config.dim > kMaxDim || config.key_limit < 0 || config.max_rows < 0) {
    return Error(Code::kDataLoss, path, " is damaged: dim ", config.dim, ", key_limit ",
                 config.key_limit, ", max_rows ", config.max_rows);
  }
  if (header.row_type != 0) config.row_type = static_cast<PlaneType>(header.row_type);
  config.rounding = static_cast<Rounding>(header.rounding);
  if (!IsRowType(config.row_type) || header.rounding > static_cast<uint32_t>(Rounding::kNearest)) {
    return Error(Code::kDataLoss, path, " is damaged: rows of type ", header.row_type,
                 ", rounding ", header.rounding);
  }
  config.shard = {header.node, header.nodes};
  if (!ValidateShard(config.shard).ok() ||
      header.owner_seed != (config.shard.whole() ? 0 : kOwnerSeed)) {
    return Error(Code::kDataLoss, path, " is damaged: node ", header.node, " of ", header.nodes,
                 ", owner seed ", header.owner_seed);
  }
  const Status initializer = ValidateInitializer(config.initializer);
  if (initializer.ok()) return config;
  return Error(Code::kDataLoss, path, " is damaged: ", initializer.message());
}

bool IsTableFile(const std::string& name) {
  return name == "directory" || name == "segments" || name == "free" || name == "erased" ||
         TableFiles::IsPlaneFile(name);
}

Status CheckLength(MappedFile& file, size_t needed) {
  TSPS_RETURN_IF_ERROR(file.CheckRange(needed));
  if (needed <= file.size() || needed <= file.RefreshSize()) return Status();
  return Error(Code::kDataLoss, file.path(), " is truncated or was removed: it has ", file.size(),
               " bytes, and ", needed, " are expected");
}

}  // namespace

void TableFiles::Remove(const std::string& folder) {
  const size_t slash = folder.rfind('/');
  const std::string table_name = folder.substr(slash + 1);
  const Result<Directory> group = Directory::Open(folder.substr(0, slash));
  if (!group.ok()) return;
  const Result<Directory> table = group->OpenChild(table_name);
  if (!table.ok()) return;
  for (const std::string& name : table->Entries()) {
    if (!IsTableFile(name)) continue;
    table->Unlink(name);
    TSPS_FAULT_POINT("remove.file");
  }
  RemoveStorage(folder);
  // The config file is last, because it marks the folder as a table's (IsLeftover).
  table->Unlink("config");
  TSPS_FAULT_POINT("remove.config");
  group->RemoveChild(table_name);
}

bool TableFiles::IsLeftover(const std::string& folder) {
  if (!CheckPrivateDirectory(folder).ok()) return false;
  const Result<int> fd = OpenRegularFile(folder + "/config", O_RDONLY, "cannot open");
  if (!fd.ok()) return fd.status().code() == Code::kNotFound && EntriesOf(folder).empty();
  uint64_t magic = 0;  // stays 0 if the creator was killed before it filled the file
  const ssize_t n = read(*fd, &magic, sizeof(magic));
  close(*fd);
  return n >= 0 && (magic == 0 || magic == kTableMagic);
}

size_t TableFiles::RoomRows() const {
  if (config_->storage.tiered()) {  // the most, which it has without slots
    const PlaneList planes = PlanesOf(*config_, OptimizerConfig(), 1, 1);
    return PlanMemory(config_->storage, RowCost(planes), MostRows(*config_)).rows;
  }
  const uint64_t most = MostRows(*config_);
  size_t rows = 2 * std::min<size_t>(most == 0 ? kMaxRowNumber : most, kMaxRowNumber);
  if (config_->key_limit > 0) rows = std::min(rows, static_cast<size_t>(config_->key_limit));
  return std::min<size_t>(rows, kMaxRowNumber);
}

Result<std::unique_ptr<TableFiles>> TableFiles::Create(const std::string& folder,
                                                       const TableConfig& config,
                                                       uint64_t index_seed) {
  Remove(folder);
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(folder));
  std::unique_ptr<TableFiles> files(new TableFiles(folder, config));
  const TableFileHeader header = HeaderOf(config);
  {
    TSPS_ASSIGN_OR_RETURN(auto file,
                          MappedFile::Create(folder + "/config", kPageBytes, kPageBytes));
    std::memcpy(file->data(), &header, sizeof(header));
  }
  if (config.storage.tiered()) TSPS_RETURN_IF_ERROR(CreateStorage(folder, config));
  const size_t max_rows = files->RoomRows();
  TSPS_ASSIGN_OR_RETURN(
      files->directory_,
      MappedFile::Create(folder + "/directory", kFirstDirectoryBytes, kMaxDirectoryBytes));
  TSPS_ASSIGN_OR_RETURN(files->segments_, MappedFile::Create(folder + "/segments", kSegmentBytes,
                                                             MaxSegmentBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(files->free_,
                        MappedFile::Create(folder + "/free", kPageBytes, MaxFreeBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(
      files->erased_, MappedFile::Create(folder + "/erased", kPageBytes, MaxErasedBytes(max_rows)));
  files->directory_entries()[DirectoryPosition(0, 0)] = 0;
  files->writable_ = true;
  const PlaneList planes = PlanesOf(config, OptimizerConfig(), kFirstGeneration, kFirstGeneration);
  TSPS_RETURN_IF_ERROR(files->MakePlanes(planes, kFirstGeneration, 0));
  if (config.storage.tiered()) {
    TSPS_ASSIGN_OR_RETURN(auto records, CreateRecords(folder, config, planes, index_seed));
    files->records_.emplace(kFirstGeneration, std::move(records));
  }
  return files;
}

Result<std::unique_ptr<TableFiles>> TableFiles::Open(const std::string& folder) {
  TSPS_RETURN_IF_ERROR(CheckPrivateDirectory(folder));
  TSPS_ASSIGN_OR_RETURN(auto config_file,
                        MappedFile::Open(folder + "/config", sizeof(TableFileHeader), kPageBytes));
  TableFileHeader header;
  std::memcpy(&header, config_file->data(), sizeof(header));
  TSPS_ASSIGN_OR_RETURN(TableConfig config, ConfigFrom(header, config_file->path(),
                                                       folder.substr(folder.rfind('/') + 1)));
  TSPS_ASSIGN_OR_RETURN(config.storage, LoadStorage(folder, config.uuid));
  std::unique_ptr<TableFiles> files(new TableFiles(folder, std::move(config)));
  const size_t max_rows = files->RoomRows();
  TSPS_ASSIGN_OR_RETURN(
      files->directory_,
      MappedFile::Open(folder + "/directory", kFirstDirectoryBytes, kMaxDirectoryBytes));
  TSPS_ASSIGN_OR_RETURN(files->segments_, MappedFile::Open(folder + "/segments", kSegmentBytes,
                                                           MaxSegmentBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(files->free_,
                        MappedFile::Open(folder + "/free", kPageBytes, MaxFreeBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(files->erased_,
                        MappedFile::Open(folder + "/erased", kPageBytes, MaxErasedBytes(max_rows)));
  return files;
}

Status TableFiles::MakeWritable(const TableState& state) {
  for (MappedFile* file : {directory_.get(), segments_.get(), free_.get(), erased_.get()}) {
    TSPS_RETURN_IF_ERROR(file->MakeWritable());
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, BoundPlanes(state));
  for (const Plane& plane : list->planes) TSPS_RETURN_IF_ERROR(plane.file->MakeWritable());
  writable_ = true;
  return Status();
}

Status TableFiles::CheckState(const TableState& state) {
  TSPS_RETURN_IF_ERROR(CheckNumbers(state, RoomRows(), folder_));
  const bool on_disk = (state.flags & kTableAbsentElsewhere) != 0;
  if (on_disk != config_->storage.tiered()) {
    return Damaged(folder_, on_disk ? "it has rows on disk, but no file records.config"
                                    : "it has a file records.config, but no rows on disk");
  }
  return CheckFiles(state);
}

Status TableFiles::CheckFiles(const TableState& state) {
  TSPS_RETURN_IF_ERROR(CheckIndexFiles(state));
  const PlaneList* list = Planes(state);
  if (list == nullptr) {
    TSPS_ASSIGN_OR_RETURN(list, BoundPlanes(state));
  }
  for (const Plane& plane : list->planes) {
    TSPS_RETURN_IF_ERROR(CheckLength(*plane.file, state.rows * plane.row_bytes));
  }
  return Status();
}

Status TableFiles::CheckIndexFiles(const TableState& state) const {
  TSPS_RETURN_IF_ERROR(
      CheckLength(*directory_, (size_t{2} << std::min(state.depth, kMaxDepth)) * sizeof(uint32_t)));
  TSPS_RETURN_IF_ERROR(CheckLength(*segments_, size_t{state.segments} * kSegmentBytes));
  TSPS_RETURN_IF_ERROR(CheckLength(*free_, state.free_rows * sizeof(uint32_t)));
  return CheckLength(*erased_, state.erased * sizeof(ErasedKey));
}

bool TableFiles::HasOtherPlanes(uint32_t generation) {
  std::lock_guard<std::mutex> lock(planes_mutex_);
  return std::any_of(lists_.begin(), lists_.end(),
                     [&](const auto& list) { return list->generation != generation; });
}

std::vector<const MappedFile*> TableFiles::Mappings() {
  std::vector<const MappedFile*> mappings = {directory_.get(), segments_.get(), free_.get(),
                                             erased_.get()};
  std::lock_guard<std::mutex> lock(planes_mutex_);
  for (const auto& file : plane_files_) mappings.push_back(file.get());
  for (const auto& [generation, records] : records_) {
    if (records == nullptr) continue;
    for (const MappedFile* const file : records->LargeFiles()) mappings.push_back(file);
  }
  return mappings;
}

uint64_t TableFiles::BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  for (const std::string& name : EntriesOf(folder)) {
    struct stat info;
    const std::string path = folder + "/" + name;
    if (lstat(path.c_str(), &info) != 0) continue;
    // Records of a tiered table have a folder for their part in memory.
    bytes += S_ISDIR(info.st_mode) ? BytesIn(path) : static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

uint64_t TableFiles::Bytes(const TableState& state) {
  // The two pages are the config and the list of planes.
  uint64_t bytes = 2 * kPageBytes + directory_->RefreshSize() + segments_->RefreshSize() +
                   free_->RefreshSize() + erased_->RefreshSize();
  if (const PlaneList* const list = Planes(state)) {
    for (const Plane& plane : list->planes) bytes += plane.file->RefreshSize();
  }
  return bytes;
}

}  // namespace tsps
