// The C interface of served tables (tf_sparse_ps/include/tsps_serving.h).
#include "tsps_serving.h"

#include <dirent.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/os/directory.h"
#include "core/serving/serving_table.h"
#include "core/serving/table_manifest.h"

struct tsps_serving_table {
  std::shared_ptr<const tsps::ServingTable> table;
};

namespace tsps {
namespace {

thread_local std::string last_error;

int CodeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return TSPS_SERVING_OK;
    case Code::kInvalidArgument:
      return TSPS_SERVING_INVALID_ARGUMENT;
    case Code::kNotFound:
      return TSPS_SERVING_NOT_FOUND;
    case Code::kOutOfRange:
      return TSPS_SERVING_OUT_OF_RANGE;
    case Code::kDataLoss:
      return TSPS_SERVING_DAMAGED;
    default:
      return TSPS_SERVING_FAILED;
  }
}

// Runs `body`, and returns the code of its status. No exception may reach C.
template <typename Body>
int Call(const Body& body) {
  try {
    const Status status = body();
    last_error = status.message();
    return CodeOf(status);
  } catch (const std::exception& error) {
    last_error = error.what();
    return TSPS_SERVING_FAILED;
  }
}

bool IsFolder(const std::string& path) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return false;
  closedir(folder);
  return true;
}

// Returns the file in `assets` of a version that names the files of a table.
Result<std::string> FindTable(const std::string& version, const char* name) {
  if (!IsFolder(version)) {
    if (name == nullptr) return version;
    return Error(Code::kNotFound, version, " is not the folder of a version");
  }
  std::vector<std::string> names, paths;
  for (const std::string& entry : EntriesOf(version + "/assets")) {
    const std::string path = version + "/assets/" + entry;
    std::ifstream file(path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    if (!IsManifest(content)) continue;
    TSPS_ASSIGN_OR_RETURN(const TableManifest manifest, DecodeManifest(content, path));
    names.push_back(manifest.table);
    if (name == nullptr || manifest.table == name) paths.push_back(path);
  }
  if (paths.size() == 1) return paths.front();
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& table : names) all += (all.empty() ? "" : ", ") + table;
  if (name == nullptr && !names.empty()) {
    return Error(Code::kInvalidArgument, version, " has the tables ", all, ". Name one of them");
  }
  return Error(Code::kNotFound, version, " has no table ", name == nullptr ? "" : name,
               ". It has: ", all.empty() ? "none" : all);
}

}  // namespace
}  // namespace tsps

#define TSPS_EXPORT extern "C" __attribute__((visibility("default")))

TSPS_EXPORT int tsps_serving_open(const char* version, const char* name, int verify,
                                  tsps_serving_table** table) {
  *table = nullptr;
  return tsps::Call([&]() -> tsps::Status {
    TSPS_ASSIGN_OR_RETURN(const std::string path, tsps::FindTable(version, name));
    tsps::ServingFiles files;
    auto opened = std::make_unique<tsps_serving_table>();
    TSPS_ASSIGN_OR_RETURN(opened->table, tsps::ServingTable::Open(path, files, verify != 0));
    *table = opened.release();
    return tsps::Status();
  });
}

TSPS_EXPORT size_t tsps_serving_dim(const tsps_serving_table* table) { return table->table->dim(); }

TSPS_EXPORT uint64_t tsps_serving_step(const tsps_serving_table* table) {
  return table->table->step();
}

TSPS_EXPORT int tsps_serving_lookup(const tsps_serving_table* table, const int64_t* keys, size_t n,
                                    float* rows) {
  return tsps::Call([&] {
    tsps::SerialExecutor serial;
    return table->table->Lookup(keys, n, rows, serial);
  });
}

TSPS_EXPORT int tsps_serving_contains(const tsps_serving_table* table, const int64_t* keys,
                                      size_t n, unsigned char* present) {
  static_assert(sizeof(bool) == 1);
  return tsps::Call(
      [&] { return table->table->Contains(keys, n, reinterpret_cast<bool*>(present)); });
}

TSPS_EXPORT void tsps_serving_close(tsps_serving_table* table) { delete table; }

TSPS_EXPORT const char* tsps_serving_error(void) { return tsps::last_error.c_str(); }
