#include "core/table/tiered_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/os/directory.h"
#include "core/os/mapped_file.h"
#include "core/table/row_records.h"

namespace tsps {
namespace {

constexpr uint64_t kMagic = 0x73636572737374ULL;  // "tssrecs"
constexpr uint32_t kVersion = 2;
constexpr size_t kMaxFolder = 3968;
// Tables of version 1, whose records.config has 0 for the bytes of a file, have such buffers.
constexpr uint64_t kBuffersOfVersion1 = 12u << 20;

struct StorageFile {
  uint64_t magic;
  uint32_t version;
  uint32_t folder_bytes;
  char uuid[32];
  uint64_t memory;
  char folder[kMaxFolder];
  uint32_t file_bytes;
  uint32_t crc;
};
static_assert(sizeof(StorageFile) <= kPageBytes);

constexpr uint64_t kLeastRows = 64;
// The most bytes of a log, in tenths of the bytes of its live records (tier/compaction.h).
constexpr uint64_t kLogTenths = 16;

// Files in a log's folder that are no files of records, or not yet.
const std::set<std::string> kUnnamed = {".records", ".copies", ".reserve"};

std::string ConfigPath(const std::string& table) { return table + "/records.config"; }
std::string OwnerPath(const std::string& folder) { return folder + "/table"; }
std::string SharedPath(const std::string& table, const std::string& generation) {
  return table + "/records." + generation;
}

bool IsGeneration(const std::string& name) {
  return !name.empty() && name.size() < 10 &&
         name.find_first_not_of("0123456789") == std::string::npos;
}

// Frees the memory of a file at once. Otherwise a process that has mapped it would keep that
// memory.
void ReleaseMemory(const Directory& folder, const std::string& name) {
  const Result<int> fd = folder.OpenFile(name, O_RDWR, "cannot open");
  if (!fd.ok()) return;
  const off_t bytes = lseek(*fd, 0, SEEK_END);
  if (bytes > 0) fallocate(*fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes);
  close(*fd);
}

// Removes the files of records in a folder, and the folder unless it has other files.
void RemoveFolder(const Directory& parent, const std::string& folder_name) {
  const Result<Directory> folder = parent.OpenChild(folder_name);
  if (!folder.ok()) return;
  for (const std::string& name : folder->Entries()) {
    // These files are hints, as are those of the rows in memory: a reader that finds zeros finds no
    // rows.
    if (name == "records.cache" || name == "records.announced") ReleaseMemory(*folder, name);
    if (name.rfind("records.", 0) == 0 || kUnnamed.count(name) != 0) folder->Unlink(name);
    TSPS_FAULT_POINT("remove.records");
  }
  parent.RemoveChild(folder_name);
}

// Remove the folders of records in the table's folder in shared memory, and in the one on disk,
// except that of the generation `kept`.
void RemoveShared(const std::string& table, const std::string& kept) {
  const Result<Directory> folder = Directory::Open(table);
  if (!folder.ok()) return;
  for (const std::string& name : folder->Entries()) {
    if (name.rfind("records.", 0) != 0 || !IsGeneration(name.substr(8))) continue;
    if (name.substr(8) != kept) RemoveFolder(*folder, name);
  }
}

void RemoveOnDisk(const Directory& folder, const std::string& kept) {
  for (const std::string& name : folder.Entries()) {
    if (IsGeneration(name) && name != kept) RemoveFolder(folder, name);
  }
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Removes the parent of a table's folder on disk if it is named like the table's group and is
// empty.
void RemoveParent(const std::string& folder, const std::string& table) {
  if (NameOf(ParentOf(folder)) == NameOf(ParentOf(table))) rmdir(ParentOf(folder).c_str());
}

// Returns the uuid of the table that owns a folder; "" if no table owns it. Sets `where` to the
// table's path.
std::string OwnerOf(const std::string& folder, std::string* where) {
  const Result<int> fd = OpenRegularFile(OwnerPath(folder), O_RDONLY, "cannot open");
  if (!fd.ok()) return fd.status().code() == Code::kNotFound ? "" : "?";
  char text[kPageBytes] = {};
  const ssize_t n = read(*fd, text, sizeof(text) - 1);
  close(*fd);
  if (n < 33) return "?";
  *where = std::string(text + 33);
  while (!where->empty() && where->back() == '\n') where->pop_back();
  return std::string(text, 32);
}

// Returns the bytes of the logs in a table's folder.
uint64_t BytesOnDisk(const std::string& folder) {
  uint64_t bytes = 0;
  for (const std::string& generation : EntriesOf(folder)) {
    if (!IsGeneration(generation)) continue;
    for (const std::string& name : EntriesOf(folder + "/" + generation)) {
      struct stat info;
      const std::string path = folder + "/" + generation + "/" + name;
      if (lstat(path.c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

Status WriteOwner(const std::string& folder, const std::string& uuid, const std::string& table) {
  const std::string path = OwnerPath(folder);
  const std::string text = uuid + " " + table + "\n";
  TSPS_ASSIGN_OR_RETURN(const int fd,
                        OpenRegularFile(path, O_WRONLY | O_CREAT | O_EXCL, "cannot make"));
  const ssize_t n = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  if (n == static_cast<ssize_t>(text.size())) return {};
  unlink(path.c_str());
  errno = n < 0 ? error : ENOSPC;
  return ErrnoError("cannot write", path);
}

}  // namespace

Status ValidateStorage(const TableConfig& config) {
  const TieredStorage& storage = config.storage;
  if (!storage.tiered()) return {};
  if (storage.folder[0] != '/' || storage.folder.size() > kMaxFolder) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": the folder of its rows on disk must be an absolute path of at most ",
                 kMaxFolder, " bytes. Received: '", storage.folder, "'");
  }
  const PlaneList planes = PlanesOf(config, OptimizerConfig(), 1, 1);
  const RowCost row(planes);
  const uint64_t most = MostRows(config);
  const uint64_t least = most == 0 ? kLeastRows : std::min(kLeastRows, most);
  if (PlanMemory(storage, row, most).rows >= least) return {};
  return Error(Code::kInvalidArgument, "table ", config.name, ": memory of ", storage.memory,
               " bytes has no room for ", least, " of its rows; that takes ",
               MemoryFor(least, row, most), " bytes");
}

Status CheckDisk(const TableConfig& config, const PlaneList& list) {
  const std::string& folder = config.storage.folder;
  struct statfs fs;
  if (statfs(folder.c_str(), &fs) != 0 && statfs(ParentOf(folder).c_str(), &fs) != 0) {
    return Status();  // creating the folder will fail and report why
  }
  if (fs.f_blocks == 0) return Status();  // the file system does not report its size
  // The rows of another list of planes are deleted after these are written.
  const uint64_t free =
      static_cast<uint64_t>(fs.f_bavail) * static_cast<uint64_t>(fs.f_bsize) + BytesOnDisk(folder);
  const uint64_t rows = MostRows(config);
  if (rows == 0) {
    if (config.storage.memory <= free) return Status();
    return Error(Code::kResourceExhausted, "table ", config.name,
                 ": its disk has less room than its memory of ", config.storage.memory,
                 " bytes: the file system of ", folder, " has ", free,
                 " bytes free. Choose a folder on a larger disk, or less memory");
  }
  const uint64_t record = LayoutOf(config, list).record_bytes;
  const uint64_t most = UINT64_MAX / record / kLogTenths;
  const uint64_t needed = std::min(rows, most) * record / 10 * kLogTenths;
  if (needed <= free) return Status();
  return Error(Code::kResourceExhausted, "table ", config.name, ": ", rows, " rows of ", record,
               " bytes can take ", needed, " bytes on disk, dead records included, and the file ",
               "system of ", folder, " has ", free,
               " bytes free. Choose a folder on a larger disk");
}

Status CreateStorage(const std::string& table, const TableConfig& config) {
  const TieredStorage& storage = config.storage;
  const Status checked = CheckDisk(config, PlanesOf(config, OptimizerConfig(), 1, 1));
  if (!checked.ok()) {
    RemoveParent(storage.folder, table);
    return checked;
  }
  const Status created = MakePrivateDirectory(storage.folder);
  if (!created.ok()) {
    if (created.code() != Code::kAlreadyExists) return created;
    TSPS_RETURN_IF_ERROR(CheckPrivateDirectory(storage.folder));
    std::string where;
    const std::string owner = OwnerOf(storage.folder, &where);
    if (!owner.empty() || !EntriesOf(storage.folder).empty()) {
      return Error(
          Code::kAlreadyExists, storage.folder,
          owner.empty() ? " is not empty, and no table's folder"
                        : " has the rows of another table, " + where,
          ". Rows on disk cannot be used without the memory of their job. If that job has ended, "
          "remove the folder and start from a saved file or checkpoint. Otherwise choose another "
          "folder");
    }
  }
  TSPS_RETURN_IF_ERROR(WriteOwner(storage.folder, config.uuid, table));
  StorageFile content = {};
  content.magic = kMagic;
  content.version = kVersion;
  content.folder_bytes = static_cast<uint32_t>(storage.folder.size());
  config.uuid.copy(content.uuid, sizeof(content.uuid));
  content.memory = storage.memory;
  content.file_bytes = static_cast<uint32_t>(FileBytes(storage));
  storage.folder.copy(content.folder, sizeof(content.folder));
  content.crc = HeaderCrc(content);
  auto file = MappedFile::Create(ConfigPath(table), kPageBytes, kPageBytes);
  if (!file.ok()) {
    unlink(OwnerPath(storage.folder).c_str());
    return file.status();
  }
  std::memcpy((*file)->data(), &content, sizeof(content));
  return {};
}

Result<TieredStorage> LoadStorage(const std::string& table, const std::string& uuid) {
  const std::string path = ConfigPath(table);
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return TieredStorage();
  TSPS_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path, sizeof(StorageFile), kPageBytes));
  StorageFile content;
  std::memcpy(&content, file->data(), sizeof(content));
  if (content.magic != kMagic) {
    return Error(Code::kDataLoss, path, " is not the records.config of a table");
  }
  if (content.version != kVersion && content.version != 1) {
    return OtherFormat(path, "records.config version " + std::to_string(content.version),
                       "version 1 or " + std::to_string(kVersion));
  }
  if (content.crc != HeaderCrc(content)) return Damaged(path, "checksum mismatch");
  if (content.folder_bytes == 0 || content.folder_bytes > kMaxFolder || content.folder[0] != '/' ||
      std::memcmp(content.uuid, uuid.data(), std::min(uuid.size(), sizeof(content.uuid))) != 0) {
    return Damaged(path, "it belongs to the table with uuid ",
                   std::string(content.uuid, sizeof(content.uuid)), ", and its path has ",
                   content.folder_bytes, " bytes");
  }
  return TieredStorage{std::string(content.folder, content.folder_bytes), content.memory,
                       content.file_bytes, content.version == 1 ? kBuffersOfVersion1 : 0};
}

namespace {

// Removes a table's folder on disk, if it belongs to this table.
void RemoveTablesFolder(const std::string& table, const std::string& path) {
  const Result<Directory> folder = Directory::Open(path);
  if (!folder.ok()) return;
  TSPS_FAULT_POINT("remove.storage");
  const auto file = MappedFile::Open(ConfigPath(table), sizeof(StorageFile), kPageBytes);
  if (!file.ok()) return;
  StorageFile content;
  std::memcpy(&content, (*file)->data(), sizeof(content));
  std::string where;
  if (OwnerOf(path, &where) != std::string(content.uuid, sizeof(content.uuid))) return;
  RemoveOnDisk(*folder, "");
  folder->Unlink(NameOf(OwnerPath(path)));
  const Result<Directory> parent = Directory::Open(ParentOf(path));
  if (parent.ok()) parent->RemoveChild(NameOf(path));
  RemoveParent(path, table);
}

}  // namespace

void RemoveStorage(const std::string& table) {
  RemoveShared(table, "");
  // The file that names the folder on disk is removed last.
  const auto storage = LoadStorage(table, "");
  if (storage.ok() && storage->tiered()) RemoveTablesFolder(table, storage->folder);
  unlink(ConfigPath(table).c_str());
}

// --- Stores. ---

RecordLayout LayoutOf(const TableConfig& config, const PlaneList& list) {
  const RowRecords records(list);
  RecordLayout layout(config.uuid, records.bytes(),
                      std::max<size_t>(FileBytes(config.storage), 16 * (records.bytes() + 64)));
  layout.use_offset = records.UseOffset().value_or(RecordLayout::kNoUse);
  return layout;
}

namespace {

RecordStore::Memory MemoryOf(const TableConfig& config, const PlaneList& list) {
  const uint64_t most = MostRows(config);
  MemoryPlan plan = PlanMemory(config.storage, RowCost(list), most);
  if (most > 0) {
    // The cache is reserved as a whole. It has twice as many places as there can be records,
    // because places share sets (record_cache.h).
    const uint64_t record = LayoutOf(config, list).record_bytes;
    plan.cache_bytes = std::min(plan.cache_bytes / 2 / record, most) * 2 * record;
  }
  return {plan.cache_bytes, plan.rows};
}

}  // namespace

Result<std::unique_ptr<RecordStore>> CreateRecords(const std::string& table,
                                                   const TableConfig& config, const PlaneList& list,
                                                   uint64_t seed) {
  TSPS_ASSIGN_OR_RETURN(IoThreads* const threads, IoThreads::OfProcess());
  const std::string generation = std::to_string(list.generation);
  const std::string shared = SharedPath(table, generation);
  const std::string disk = config.storage.folder + "/" + generation;
  for (const std::string& folder : {shared, disk}) {  // left by a binding that did not succeed
    const Result<Directory> parent = Directory::Open(ParentOf(folder));
    if (parent.ok()) RemoveFolder(*parent, NameOf(folder));
  }
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(shared));
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(disk));
  return RecordStore::Create(shared, disk, LayoutOf(config, list), seed, MemoryOf(config, list),
                             *threads);
}

Result<std::unique_ptr<RecordStore>> OpenRecords(const std::string& table,
                                                 const TableConfig& config, const PlaneList& list,
                                                 uint64_t seed) {
  TSPS_ASSIGN_OR_RETURN(IoThreads* const threads, IoThreads::OfProcess());
  const std::string generation = std::to_string(list.generation);
  return RecordStore::Open(SharedPath(table, generation), config.storage.folder + "/" + generation,
                           LayoutOf(config, list), seed, MemoryOf(config, list), *threads);
}

void RemoveOtherRecords(const std::string& table, const TieredStorage& storage,
                        uint32_t generation) {
  const std::string current = std::to_string(generation);
  const Result<Directory> disk = Directory::Open(storage.folder);
  if (disk.ok()) RemoveOnDisk(*disk, current);
  RemoveShared(table, current);
}

}  // namespace tsps
