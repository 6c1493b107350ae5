#include "core/table/table_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/table/index.h"
#include "core/table/table_checks.h"

namespace tsps {
namespace {

constexpr size_t kFirstDirectoryBytes = kPageBytes;
constexpr const char* kSlots = "slots.";  // the files' names begin with it
constexpr size_t kMaxDirectoryBytes = (size_t{2} << kMaxDepth) * sizeof(uint32_t);

// What the index of `rows` keys cannot outgrow: four times what hashing ever takes (20 to 57 bytes
// a row), because keys may be chosen to collide, or come and go.
size_t MaxSegmentBytes(size_t rows) { return std::max<size_t>(64u << 20, 256 * rows); }
size_t MaxFreeBytes(size_t rows) { return rows * sizeof(uint32_t); }

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
  const Status initializer = ValidateInitializer(config.initializer);
  if (initializer.ok()) return config;
  return Error(Code::kDataLoss, path, " is damaged: ", initializer.message());
}

bool IsTableFile(const std::string& name) {
  return name == "directory" || name == "segments" || name == "rows" || name == "free" ||
         name.rfind(kSlots, 0) == 0;
}

std::string SlotPrefix(uint32_t generation) { return kSlots + std::to_string(generation) + "."; }

}  // namespace

void TableFiles::Remove(const std::string& folder) {
  for (const std::string& name : EntriesOf(folder)) {
    if (!IsTableFile(name)) continue;
    unlink((folder + "/" + name).c_str());
    TSPS_FAULT_POINT("remove.file");
  }
  // Last: by it a folder is known to be a table's (IsLeftover).
  unlink((folder + "/config").c_str());
  TSPS_FAULT_POINT("remove.config");
  rmdir(folder.c_str());
}

bool TableFiles::IsLeftover(const std::string& folder) {
  if (!CheckPrivateDirectory(folder).ok()) return false;
  const int fd = open((folder + "/config").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT && EntriesOf(folder).empty();
  uint64_t magic = 0;  // of a file that its killed maker has not filled
  const ssize_t n = read(fd, &magic, sizeof(magic));
  close(fd);
  return n >= 0 && (magic == 0 || magic == kTableMagic);
}

size_t TableFiles::MaxRows() const {
  size_t rows = kMaxRowNumber;
  for (const int64_t limit : {config_->max_rows, config_->key_limit}) {
    if (limit > 0) rows = std::min(rows, static_cast<size_t>(limit));
  }
  return rows;
}

Result<std::unique_ptr<TableFiles>> TableFiles::Create(const std::string& folder,
                                                       const TableConfig& config) {
  Remove(folder);
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(folder));
  std::unique_ptr<TableFiles> files(new TableFiles(folder, config));
  const TableFileHeader header = HeaderOf(config);
  {
    TSPS_ASSIGN_OR_RETURN(auto file,
                          MappedFile::Create(folder + "/config", kPageBytes, kPageBytes));
    std::memcpy(file->data(), &header, sizeof(header));
  }
  const size_t max_rows = files->MaxRows();
  TSPS_ASSIGN_OR_RETURN(
      files->directory_,
      MappedFile::Create(folder + "/directory", kFirstDirectoryBytes, kMaxDirectoryBytes));
  TSPS_ASSIGN_OR_RETURN(files->segments_, MappedFile::Create(folder + "/segments", kSegmentBytes,
                                                             MaxSegmentBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(files->rows_,
                        MappedFile::Create(folder + "/rows", kPageBytes, files->MaxRowBytes()));
  TSPS_ASSIGN_OR_RETURN(files->free_,
                        MappedFile::Create(folder + "/free", kPageBytes, MaxFreeBytes(max_rows)));
  files->directory_entries()[DirectoryPosition(0, 0)] = 0;
  files->writable_ = true;
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
  std::unique_ptr<TableFiles> files(new TableFiles(folder, std::move(config)));
  const size_t max_rows = files->MaxRows();
  TSPS_ASSIGN_OR_RETURN(
      files->directory_,
      MappedFile::Open(folder + "/directory", kFirstDirectoryBytes, kMaxDirectoryBytes));
  TSPS_ASSIGN_OR_RETURN(files->segments_, MappedFile::Open(folder + "/segments", kSegmentBytes,
                                                           MaxSegmentBytes(max_rows)));
  TSPS_ASSIGN_OR_RETURN(files->rows_,
                        MappedFile::Open(folder + "/rows", kPageBytes, files->MaxRowBytes()));
  TSPS_ASSIGN_OR_RETURN(files->free_,
                        MappedFile::Open(folder + "/free", kPageBytes, MaxFreeBytes(max_rows)));
  return files;
}

Status TableFiles::MakeWritable(const TableState& state) {
  for (MappedFile* file : {directory_.get(), segments_.get(), rows_.get(), free_.get()}) {
    TSPS_RETURN_IF_ERROR(file->MakeWritable());
  }
  TSPS_ASSIGN_OR_RETURN(const SlotFiles* slots, BoundSlots(state));
  if (slots != nullptr) {
    for (const auto& file : slots->files) TSPS_RETURN_IF_ERROR(file->MakeWritable());
  }
  writable_ = true;
  return Status();
}

Result<const SlotFiles*> TableFiles::BoundSlots(const TableState& state) {
  const auto kind = static_cast<OptimizerKind>(state.optimizer);
  const SlotFiles* slots = SlotCount(kind) > 0 ? Slots(state) : nullptr;
  if (SlotCount(kind) == 0 || slots != nullptr) return slots;
  return Error(Code::kDataLoss, folder_, ": the slot files of optimizer ", OptimizerKindName(kind),
               " are missing or cannot be mapped");
}

Status TableFiles::CheckState(const TableState& state) {
  TSPS_RETURN_IF_ERROR(CheckNumbers(state, MaxRows(), folder_));
  TSPS_RETURN_IF_ERROR(BoundSlots(state).status());
  return CheckFiles(state);
}

Status TableFiles::CheckFiles(const TableState& state) const {
  const auto check = [](MappedFile& file, size_t needed) {
    TSPS_RETURN_IF_ERROR(file.CheckRange(needed));
    if (needed <= file.size() || needed <= file.RefreshSize()) return Status();
    return Error(Code::kDataLoss, file.path(), " is truncated or was removed: ", file.size(),
                 " bytes, ", needed, " expected");
  };
  TSPS_RETURN_IF_ERROR(
      check(*directory_, (size_t{2} << std::min(state.depth, kMaxDepth)) * sizeof(uint32_t)));
  TSPS_RETURN_IF_ERROR(check(*segments_, size_t{state.segments} * kSegmentBytes));
  TSPS_RETURN_IF_ERROR(check(*rows_, state.rows * row_bytes()));
  TSPS_RETURN_IF_ERROR(check(*free_, state.free_rows * sizeof(uint32_t)));
  const SlotFiles* slots = latest_slots_.load(std::memory_order_acquire);
  if (slots == nullptr || slots->generation != state.generation) return Status();
  for (const auto& file : slots->files)
    TSPS_RETURN_IF_ERROR(check(*file, state.rows * row_bytes()));
  return Status();
}

std::string TableFiles::SlotPath(uint32_t generation, OptimizerKind kind, int slot) const {
  return folder_ + "/" + SlotPrefix(generation) + SlotName(kind, slot);
}

const SlotFiles* TableFiles::Slots(const TableState& state) {
  const SlotFiles* latest = latest_slots_.load(std::memory_order_acquire);
  if (latest != nullptr && latest->generation == state.generation) return latest;
  const auto kind = static_cast<OptimizerKind>(state.optimizer);
  std::lock_guard<std::mutex> lock(slots_mutex_);
  for (const auto& known : slots_) {
    if (known->generation == state.generation) return known.get();
  }
  auto slots = std::make_unique<SlotFiles>();
  slots->generation = state.generation;
  for (int k = 0; k < SlotCount(kind); ++k) {
    auto file = MappedFile::Open(SlotPath(state.generation, kind, k), 0, MaxRowBytes());
    if (!file.ok()) return nullptr;
    if (writable_ && !(*file)->MakeWritable().ok()) return nullptr;
    slots->files.push_back(std::move(*file));
  }
  if (!CheckInPlace().ok()) return nullptr;  // they may be another table's
  slots_.push_back(std::move(slots));
  latest_slots_.store(slots_.back().get(), std::memory_order_release);
  return slots_.back().get();
}

Status TableFiles::CreateSlots(uint32_t generation, const OptimizerConfig& optimizer,
                               uint64_t rows) {
  TSPS_RETURN_IF_ERROR(CheckInPlace());
  for (const std::string& name : EntriesOf(folder_)) {  // of a binding that was killed, or failed
    if (name.rfind(SlotPrefix(generation), 0) == 0) unlink((folder_ + "/" + name).c_str());
  }
  auto slots = std::make_unique<SlotFiles>();
  slots->generation = generation;
  for (int k = 0; k < SlotCount(optimizer.kind); ++k) {
    const std::string path = SlotPath(generation, optimizer.kind, k);
    const size_t bytes = std::max<size_t>(kPageBytes, rows * row_bytes());
    TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(path, bytes, MaxRowBytes()));
    const size_t floats = rows * dim();
    std::fill_n(reinterpret_cast<float*>(file->data()), floats, optimizer.slot_init[k]);
    slots->files.push_back(std::move(file));
  }
  std::lock_guard<std::mutex> lock(slots_mutex_);
  slots_.push_back(std::move(slots));
  latest_slots_.store(slots_.back().get(), std::memory_order_release);
  return Status();
}

Status TableFiles::RemoveOtherSlots(const TableState& state) const {
  TSPS_RETURN_IF_ERROR(CheckInPlace());
  const auto kind = static_cast<OptimizerKind>(state.optimizer);
  std::vector<std::string> others;
  for (const std::string& name : EntriesOf(folder_)) {
    if (name.rfind(kSlots, 0) != 0) continue;
    const std::string path = folder_ + "/" + name;
    bool current = false;
    for (int k = 0; k < SlotCount(kind); ++k)
      current |= path == SlotPath(state.generation, kind, k);
    if (current) continue;
    if (name.rfind(SlotPrefix(state.generation), 0) == 0) {
      return Error(Code::kDataLoss, folder_, " is damaged: ", name,
                   " is no slot of the commit record's optimizer, ", OptimizerKindName(kind));
    }
    others.push_back(path);
  }
  for (const std::string& path : others) unlink(path.c_str());
  return Status();
}

bool TableFiles::HasOtherSlots(uint32_t generation) const {
  const SlotFiles* latest = latest_slots_.load(std::memory_order_acquire);
  return latest != nullptr && latest->generation != generation;
}

std::vector<const MappedFile*> TableFiles::Mappings() {
  std::vector<const MappedFile*> mappings = {directory_.get(), segments_.get(), rows_.get(),
                                             free_.get()};
  std::lock_guard<std::mutex> lock(slots_mutex_);
  for (const auto& slots : slots_) {
    for (const auto& file : slots->files) mappings.push_back(file.get());
  }
  return mappings;
}

uint64_t TableFiles::BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  for (const std::string& name : EntriesOf(folder)) {
    struct stat info;
    if (stat((folder + "/" + name).c_str(), &info) == 0)
      bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

uint64_t TableFiles::Bytes(const TableState& state) {
  uint64_t bytes = kPageBytes + directory_->RefreshSize() + segments_->RefreshSize() +
                   rows_->RefreshSize() + free_->RefreshSize();
  if (SlotCount(static_cast<OptimizerKind>(state.optimizer)) > 0) {
    if (const SlotFiles* slots = Slots(state)) {
      for (const auto& file : slots->files) bytes += file->RefreshSize();
    }
  }
  return bytes;
}

}  // namespace tsps
