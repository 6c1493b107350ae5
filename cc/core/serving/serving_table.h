// ServingTable: a table of a version, for lookups: a base and up to eight layers of changes.
//
// The files are mapped, and the page cache has the only copy of them on a machine. Lookups write
// nothing and take no locks.
#ifndef TFSPS_CORE_SERVING_SERVING_TABLE_H_
#define TFSPS_CORE_SERVING_SERVING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/serving/row_code.h"
#include "core/serving/serving_file.h"
#include "core/serving/serving_lookup.h"

namespace tsps {

constexpr size_t kMaxLayers = 8;

// The files that a process has mapped. Versions share files by hard links, so a new version maps
// only the files that it adds. Thread-safe.
class ServingFiles {
 public:
  // Returns the mapped file of a path. `verify`: checks all blocks of a file that this process has
  // not checked yet.
  Result<std::shared_ptr<const ServingFile>> Open(const std::string& path, bool verify);

 private:
  struct Identity {
    uint64_t device, inode, bytes;
    int64_t changed_s, changed_ns;
    bool operator<(const Identity& other) const;
  };
  std::mutex mutex_;
  std::map<Identity, std::weak_ptr<const ServingFile>> files_;
};

// Thread-safe.
class ServingTable {
 public:
  // Opens a table from its manifest in a version (table_manifest.h), or from a single file that is
  // a base. Holds a lock of the manifest, which says that the version is in use. `verify`: checks
  // all blocks, which reads all files.
  static Result<std::shared_ptr<const ServingTable>> Open(const std::string& path,
                                                          ServingFiles& files, bool verify);
  // Makes a table of files, newest first. InvalidArgument: they are not those of one version.
  static Result<std::shared_ptr<const ServingTable>> Of(
      std::string path, std::vector<std::shared_ptr<const ServingFile>> files);
  ~ServingTable();
  ServingTable(const ServingTable&) = delete;
  ServingTable& operator=(const ServingTable&) = delete;

  const std::string& path() const { return path_; }
  size_t dim() const { return dim_; }
  int64_t key_limit() const { return newest().key_limit; }
  uint64_t step() const { return step_; }
  // The header of the newest file.
  const ServingHeader& newest() const { return files_.front()->header(); }
  const std::vector<std::shared_ptr<const ServingFile>>& files() const { return files_; }

  // Writes the rows of keys to `rows`, float[n, dim]. Keys may repeat. Absent and erased keys get
  // their initial rows. OutOfRange, naming the key: it is outside of a bounded table. DataLoss: the
  // index of a file is damaged.
  Status Lookup(const int64_t* keys, size_t n, float* rows, Executor& executor) const;
  // Sets present[i] to whether keys[i] has a row.
  Status Contains(const int64_t* keys, size_t n, bool* present) const;
  // Checks the checksums of all blocks of all files.
  Status Verify() const;

 private:
  ServingTable(std::string path, std::vector<std::shared_ptr<const ServingFile>> files);
  // Writes the initial rows of the keys that a lookup has not found. `initial` is for 16 rows.
  void FillAbsent(const LookupResult& result, const int64_t* keys, char* scratch, float* initial,
                  float* rows) const;
  Status CheckKeyRange(const int64_t* keys, size_t n) const;

  const std::string path_;
  const std::vector<std::shared_ptr<const ServingFile>> files_;
  const size_t dim_;
  const AbsentRows absent_;
  const FileStack stack_;
  uint64_t step_;
  int lock_ = -1;  // a descriptor of the manifest
};

// Returns whether the environment asks for TFSPS_VERIFY=open. InvalidArgument for other values.
Result<bool> VerifiesAtOpen();

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SERVING_TABLE_H_
