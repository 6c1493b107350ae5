#include "kernels/file_tables.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "core/files/parameter_file.h"
#include "kernels/process.h"

namespace tsps {
namespace {

std::string RandomUuid() {
  std::random_device random;
  std::string uuid;
  for (int digit = 0; digit < 32; ++digit) uuid += "0123456789abcdef"[random() & 15];
  return uuid;
}

// A private folder, which the destructor deletes. Mappings of its files stay valid.
class PrivateFolder {
 public:
  static Result<std::unique_ptr<PrivateFolder>> Create(const std::string& parent) {
    std::string path = parent + "/tf_sparse_ps-files-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return ErrnoError("cannot make a folder", path);
    return std::unique_ptr<PrivateFolder>(new PrivateFolder(std::move(path)));
  }
  ~PrivateFolder() {
    const auto remove_entry = [](const char* path, const struct stat*, int, FTW*) {
      std::remove(path);
      return 0;
    };
    nftw(path_.c_str(), remove_entry, kOpenFolders, FTW_DEPTH | FTW_PHYS);
  }
  const std::string& path() const { return path_; }

 private:
  static constexpr int kOpenFolders = 8;  // at a time, while the destructor walks the folder

  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

Status LoadFile(const std::string& path, size_t number, GroupWriter& writer, Executor& executor) {
  TSPS_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterFileReader> file,
                        ParameterFileReader::Open(path));
  const ParameterFileInfo& info = file->info();
  if (!info.shard.whole()) {
    return Error(Code::kInvalidArgument, path, " has only the rows of node ", info.shard.node,
                 " of ", info.shard.nodes,
                 " of a sharded table. Lookups need all rows, so the file was not loaded. Use a "
                 "file with the rows of all nodes");
  }
  TableConfig config;
  config.name = "t" + std::to_string(number);
  config.uuid = RandomUuid();
  config.dim = info.dim;
  config.key_limit = info.key_limit;
  config.initializer = info.initializer;
  config.row_type = info.row_type;
  TSPS_ASSIGN_OR_RETURN(const int table, writer.CreateTable(config));
  std::vector<int64_t> keys;
  std::vector<char> rows;
  const size_t row_bytes = info.dim * ElementBytes(info.row_type);
  std::vector<void*> values(PlanesOf(info).size(), nullptr);  // null: a plane that is skipped
  for (size_t block = 0; block < file->n_blocks(); ++block) {
    const size_t n = file->rows_in_block(block);
    keys.resize(n);
    rows.resize(n * row_bytes);
    values[0] = rows.data();
    TSPS_RETURN_IF_ERROR(file->ReadBlock(block, keys.data(), values.data()));
    const std::vector<PlaneValues> embedding = {
        {PlaneRole::kEmbedding, "embedding", row_bytes, rows.data()}};
    TSPS_RETURN_IF_ERROR(writer.Assign(table, keys.data(), embedding, n, executor));
  }
  return Status();
}

Result<std::shared_ptr<OpenGroup>> Load(const std::vector<std::string>& paths,
                                        const std::string& parent) {
  TSPS_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateFolder> folder, PrivateFolder::Create(parent));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<Group> group,
                        Group::Create(folder->path() + "/files", RandomUuid()));
  TSPS_ASSIGN_OR_RETURN(const std::unique_ptr<GroupWriter> writer, group->OpenWriter());
  const std::shared_ptr<Executor> executor = SharedExecutor();
  for (size_t i = 0; i < paths.size(); ++i) {
    TSPS_RETURN_IF_ERROR(LoadFile(paths[i], i, *writer, *executor));
  }
  return std::make_shared<OpenGroup>(group);
}

// Returns the folders to try for the rows, in this order: the user's folder, shared memory, and
// folders for temporary files.
std::vector<std::string> Parents() {
  std::vector<std::string> parents;
  if (const char* folder = getenv("TFSPS_DIR"); folder != nullptr && *folder != '\0') {
    parents.emplace_back(folder);
  }
  parents.emplace_back("/dev/shm");
  if (const char* folder = getenv("TMPDIR"); folder != nullptr && *folder != '\0') {
    parents.emplace_back(folder);
  }
  parents.emplace_back("/tmp");
  return parents;
}

// Returns a text that differs between a file and a later one of the same name.
std::string Identity(const std::string& path) {
  struct stat file{};
  if (stat(path.c_str(), &file) != 0) return path;
  return path + "\n" + std::to_string(file.st_dev) + " " + std::to_string(file.st_ino) + " " +
         std::to_string(file.st_size) + " " + std::to_string(file.st_mtim.tv_sec) + "." +
         std::to_string(file.st_mtim.tv_nsec) + "\n";
}

struct Loaded {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<OpenGroup>> groups;
};

Loaded& AllLoaded() {
  static Loaded* loaded = new Loaded;  // never destroyed, like the registry
  return *loaded;
}

}  // namespace

Result<std::vector<TableHandle>> OpenParameterFiles(const std::vector<std::string>& paths) {
  std::string identity;
  for (const std::string& path : paths) identity += Identity(path);
  Loaded& loaded = AllLoaded();
  std::lock_guard<std::mutex> lock(loaded.mutex);
  std::weak_ptr<OpenGroup>& known = loaded.groups[identity];
  std::shared_ptr<OpenGroup> group = known.lock();
  Status status;
  for (const std::string& parent : Parents()) {
    if (group != nullptr) break;
    Result<std::shared_ptr<OpenGroup>> result = Load(paths, parent);
    if (result.ok()) {
      group = *result;
      break;
    }
    // Reports the error of the first folder, which the user may have chosen. Other errors than a
    // full or forbidden folder are errors of a file, so another folder does not help.
    if (status.ok()) status = result.status();
    const Code code = result.status().code();
    if (code != Code::kResourceExhausted && code != Code::kPermissionDenied &&
        code != Code::kNotFound) {
      return result.status();
    }
  }
  if (group == nullptr) return status;
  known = group;
  static std::once_flag said;
  std::call_once(said, [&] {
    std::fprintf(stderr,
                 "tf_sparse_ps: %s is from an older export, so each process loads a copy of its "
                 "tables. Export the model again to share one copy between processes\n",
                 paths.front().c_str());
  });
  std::vector<TableHandle> tables;
  for (size_t i = 0; i < paths.size(); ++i) {
    TSPS_ASSIGN_OR_RETURN(TableHandle table, TableHandle::Of(group, static_cast<int>(i)));
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace tsps
