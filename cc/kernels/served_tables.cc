#include "kernels/served_tables.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/files/parameter_file_layout.h"
#include "core/serving/serving_table.h"

namespace tsps {
namespace {

ServingFiles& MappedFiles() {
  static ServingFiles* const files = new ServingFiles;  // never destroyed, like the registry
  return *files;
}

Result<TableHandle> OpenServed(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(const bool verify, VerifiesAtOpen());
  TableHandle table;
  TSPS_ASSIGN_OR_RETURN(table.served, ServingTable::Open(path, MappedFiles(), verify));
  auto config = std::make_shared<TableConfig>();
  const SplitPath split = SplitTablePath(path);
  config->name = split.name;
  config->dim = static_cast<int64_t>(table.served->dim());
  config->key_limit = table.served->key_limit();
  table.known = std::move(config);
  return table;
}

}  // namespace

TableSource SourceOf(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return TableSource::kGroup;
  unsigned char magic[sizeof(kParameterFileMagic)] = {};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : pread(fd, magic, sizeof(magic), 0);
  if (fd >= 0) close(fd);
  const bool is_parameter_file = n == static_cast<ssize_t>(sizeof(magic)) &&
                                 std::memcmp(magic, kParameterFileMagic, sizeof(magic)) == 0;
  return is_parameter_file ? TableSource::kParameterFile : TableSource::kServed;
}

Result<std::vector<TableHandle>> OpenServedTables(const std::vector<std::string>& paths) {
  std::vector<TableHandle> tables;
  for (const std::string& path : paths) {
    TSPS_ASSIGN_OR_RETURN(TableHandle table, OpenServed(path));
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace tsps
