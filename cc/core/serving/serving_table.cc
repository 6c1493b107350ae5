#include "core/serving/serving_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/stream_copy.h"
#include "core/os/file_io.h"
#include "core/serving/table_manifest.h"

namespace tsps {
namespace {

constexpr uint64_t kMaxManifestBytes = 1 << 20;
constexpr size_t kMinLookupKeys = 512;  // of a thread
constexpr size_t kAbsentKeys = 16;      // whose initial rows are made at once
constexpr size_t kLongRow = 64;         // floats; such rows are made one by one

class OpenedFile {
 public:
  explicit OpenedFile(int fd) : fd_(fd) {}
  ~OpenedFile() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Reads a manifest, or the first bytes of another file.
Result<std::string> ReadStart(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", path);
  if (S_ISDIR(info.st_mode)) {
    return Error(Code::kInvalidArgument, path,
                 " is a folder. Name the manifest of a table, assets/<table> in the folder of a "
                 "version");
  }
  if (!S_ISREG(info.st_mode)) return Error(Code::kDataLoss, path, " is not a regular file");
  std::string content(static_cast<size_t>(std::min<uint64_t>(static_cast<uint64_t>(info.st_size),
                                                             kMaxManifestBytes)),
                      '\0');
  TSPS_ASSIGN_OR_RETURN(const size_t n, ReadAt(fd, path, content.data(), content.size(), 0));
  content.resize(n);
  return content;
}

// Marks the version as in use. Other processes may do so, too. Some file systems have no locks.
void LockShared(int fd) {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  fcntl(fd, F_OFD_SETLK, &lock);
}

Status CheckStack(const std::string& path,
                  const std::vector<std::shared_ptr<const ServingFile>>& files) {
  if (files.empty() || files.size() > kMaxLayers + 1) {
    return Error(Code::kInvalidArgument, path, " has ", files.size(),
                 " files; a table has a base and at most ", kMaxLayers, " layers");
  }
  const ServingHeader& first = files.front()->header();
  for (size_t i = 0; i < files.size(); ++i) {
    const ServingHeader& header = files[i]->header();
    if ((header.is_layer == 0) != (i + 1 == files.size())) {
      return Error(Code::kInvalidArgument, path, ": ", files[i]->path(), " is a ",
                   header.is_layer == 0 ? "base above other files" : "layer without a base");
    }
    const bool same =
        header.dim == first.dim && header.row_code == first.row_code &&
        header.hash_seed == first.hash_seed && header.key_limit == first.key_limit &&
        std::memcmp(header.table_uuid, first.table_uuid, sizeof(first.table_uuid)) == 0;
    const bool ordered = i == 0 || header.last_sequence < files[i - 1]->header().first_sequence;
    if (!same || !ordered) {
      return Error(Code::kInvalidArgument, path, ": ", files[i]->path(), " and ",
                   files[same ? i - 1 : 0]->path(), " are not files of one version");
    }
  }
  return Status();
}

}  // namespace

bool ServingFiles::Identity::operator<(const Identity& other) const {
  return std::tie(device, inode, bytes, changed_s, changed_ns) <
         std::tie(other.device, other.inode, other.bytes, other.changed_s, other.changed_ns);
}

Result<std::shared_ptr<const ServingFile>> ServingFiles::Open(const std::string& path,
                                                              bool verify) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoError("cannot open", path);
  const Identity identity{info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
                          info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  std::shared_ptr<const ServingFile> file;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    file = files_[identity].lock();
  }
  if (file == nullptr) {
    TSPS_ASSIGN_OR_RETURN(file, ServingFile::Open(path));
  }
  if (verify && !file->verified()) TSPS_RETURN_IF_ERROR(file->Verify());
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = files_.begin(); entry != files_.end();) {
    entry = entry->second.expired() ? files_.erase(entry) : std::next(entry);
  }
  files_[identity] = file;
  return file;
}

Result<std::shared_ptr<const ServingTable>> ServingTable::Open(const std::string& path,
                                                               ServingFiles& files, bool verify) {
  OpenedFile opened(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (opened.get() < 0) return ErrnoError("cannot open", path);
  LockShared(opened.get());
  TSPS_ASSIGN_OR_RETURN(const std::string content, ReadStart(opened.get(), path));
  std::vector<std::shared_ptr<const ServingFile>> stack;
  std::optional<uint64_t> step;
  if (!IsManifest(content)) {
    TSPS_ASSIGN_OR_RETURN(auto file, files.Open(path, verify));
    stack.push_back(std::move(file));
  } else {
    TSPS_ASSIGN_OR_RETURN(const TableManifest manifest, DecodeManifest(content, path));
    step = manifest.step;
    // The manifest is in the folder `assets` of its version.
    const std::string version = FolderOf(path) + "/../";
    for (const ManifestFile& listed : manifest.files) {
      TSPS_ASSIGN_OR_RETURN(auto file, files.Open(version + listed.path, verify));
      if (file->header().file_bytes != listed.bytes || file->header().crc != listed.header_crc) {
        return Damaged(file->path(), "it is not the file that ", path, " names");
      }
      stack.push_back(std::move(file));
    }
  }
  TSPS_RETURN_IF_ERROR(CheckStack(path, stack));
  std::shared_ptr<ServingTable> table(new ServingTable(path, std::move(stack)));
  table->lock_ = opened.Release();
  if (step.has_value()) table->step_ = *step;
  return std::shared_ptr<const ServingTable>(std::move(table));
}

Result<std::shared_ptr<const ServingTable>> ServingTable::Of(
    std::string path, std::vector<std::shared_ptr<const ServingFile>> files) {
  TSPS_RETURN_IF_ERROR(CheckStack(path, files));
  return std::shared_ptr<const ServingTable>(new ServingTable(std::move(path), std::move(files)));
}

ServingTable::ServingTable(std::string path, std::vector<std::shared_ptr<const ServingFile>> files)
    : path_(std::move(path)),
      files_(std::move(files)),
      dim_(newest().dim),
      absent_(files_.front()->initializer(), static_cast<PlaneType>(newest().row_type),
              files_.front()->row_code(), dim_),
      stack_(files_),
      step_(newest().step) {}

ServingTable::~ServingTable() {
  if (lock_ >= 0) close(lock_);
}

Status ServingTable::CheckKeyRange(const int64_t* keys, size_t n) const {
  const int64_t limit = key_limit();
  if (limit == 0) return Status();
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] >= 0 && keys[i] < limit) continue;
    return Error(Code::kOutOfRange, "keys[", i, "] = ", keys[i], " is not in [0, ", limit,
                 ") of table ", path_);
  }
  return Status();
}

Status ServingTable::Lookup(const int64_t* keys, size_t n, float* rows, Executor& executor) const {
  TSPS_RETURN_IF_ERROR(CheckKeyRange(keys, n));
  const bool stream =
      n * dim_ * sizeof(float) >= kStreamedBytes && CanStream(rows, dim_ * sizeof(float));
  std::vector<int64_t> astray;
  std::mutex mutex;
  executor.ParallelFor(n, kMinLookupKeys, [&](size_t begin, size_t end) {
    LookupResult result;
    std::vector<char> scratch(2 * dim_ + 8);
    std::vector<float> initial(dim_ < kLongRow ? kAbsentKeys * dim_ : 0);
    for (size_t first = begin; first < end; first += kLookupKeys) {
      const size_t count = std::min(kLookupKeys, end - first);
      LookUpRange(stack_, keys + first, count, stream, rows + first * dim_, &result);
      FillAbsent(result, keys + first, scratch.data(), initial.data(), rows + first * dim_);
      if (result.astray >= 0) {
        const std::lock_guard<std::mutex> lock(mutex);
        astray.push_back(keys[first + static_cast<size_t>(result.astray)]);
        break;
      }
    }
    if (stream) StreamFence();
  });
  if (!astray.empty()) {
    return Damaged(path_, "an index places the row of key ", astray.front(),
                   " outside of its file. Copy the version again, or export it again");
  }
  return Status();
}

void ServingTable::FillAbsent(const LookupResult& result, const int64_t* keys, char* scratch,
                              float* initial, float* rows) const {
  if (dim_ >= kLongRow) {
    for (size_t i = 0; i < result.n_absent; ++i) {
      const size_t at = result.absent[i];
      absent_.Rows(keys + at, 1, scratch, rows + at * dim_);
    }
    return;
  }
  int64_t absent_keys[kAbsentKeys];
  for (size_t begin = 0; begin < result.n_absent; begin += kAbsentKeys) {
    const uint32_t* const positions = result.absent + begin;
    const size_t n = std::min(kAbsentKeys, result.n_absent - begin);
    for (size_t i = 0; i < n; ++i) absent_keys[i] = keys[positions[i]];
    absent_.Rows(absent_keys, n, scratch, initial);
    for (size_t i = 0; i < n; ++i) {
      std::copy_n(initial + i * dim_, dim_, rows + positions[i] * dim_);
    }
  }
}

Status ServingTable::Contains(const int64_t* keys, size_t n, bool* present) const {
  TSPS_RETURN_IF_ERROR(CheckKeyRange(keys, n));
  LookupResult result;
  for (size_t first = 0; first < n; first += kLookupKeys) {
    const size_t count = std::min(kLookupKeys, n - first);
    LookUpRange(stack_, keys + first, count, false, nullptr, &result);
    if (result.astray >= 0) {
      return files_.front()->Astray(keys[first + static_cast<size_t>(result.astray)]);
    }
    std::fill_n(present + first, count, true);
    for (size_t i = 0; i < result.n_absent; ++i) present[first + result.absent[i]] = false;
  }
  return Status();
}

Status ServingTable::Verify() const {
  for (const auto& file : files_) TSPS_RETURN_IF_ERROR(file->Verify());
  return Status();
}

Result<bool> VerifiesAtOpen() {
  const char* const value = getenv("TFSPS_VERIFY");
  if (value == nullptr || *value == '\0') return false;
  if (std::string(value) == "open") return true;
  return Error(Code::kInvalidArgument, "TFSPS_VERIFY must be 'open' or unset. Received: '", value,
               "'");
}

}  // namespace tsps
