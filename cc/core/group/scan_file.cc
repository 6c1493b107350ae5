#include "core/group/scan_file.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/limits.h"
#include "core/base/racy_copy.h"
#include "core/table/layout.h"

namespace tsps {
namespace {

uint32_t ScanLayoutHash() {
  const uint64_t sizes[] = {sizeof(ScanHeader), sizeof(ScanTable), sizeof(ScanRecord),
                            TableLayoutHash()};
  return Crc32c(0, sizes, sizeof(sizes));
}

size_t BitWords(uint64_t rows) { return rows / 64 + 1; }

size_t FileBytes(const std::vector<ScanFile::Wanted>& tables) {
  size_t bytes = sizeof(ScanHeader) + tables.size() * sizeof(ScanTable);
  for (const ScanFile::Wanted& table : tables) bytes += BitWords(table.rows) * sizeof(uint64_t);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

std::string ScanLockPath(const std::string& group, size_t place) {
  return group + "/.scan-" + std::to_string(place);
}

std::string ScanPath(const std::string& group, size_t place, uint64_t id) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, id);
  return ScanLockPath(group, place) + "." + digits;
}

std::string ScanImagesPath(const std::string& group, size_t place) {
  return ScanLockPath(group, place) + ".images";
}

void ScanFile::Place(std::unique_ptr<MappedFile> file) {
  file_ = std::move(file);
  char* at = file_->data() + sizeof(ScanHeader) + tables_.size() * sizeof(ScanTable);
  for (const Wanted& table : tables_) {
    bits_.push_back(reinterpret_cast<uint64_t*>(at));
    at += BitWords(table.rows) * sizeof(uint64_t);
  }
}

Result<std::unique_ptr<ScanFile>> ScanFile::Create(const std::string& path, uint64_t id,
                                                   uint64_t limit,
                                                   const std::vector<Wanted>& wanted) {
  std::unique_ptr<ScanFile> scan(new ScanFile());
  scan->tables_ = wanted;
  scan->limit_ = limit;
  const size_t begin = FileBytes(wanted);
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(path, begin, begin));
  scan->Place(std::move(file));
  auto* const tables = reinterpret_cast<ScanTable*>(scan->file_->data() + sizeof(ScanHeader));
  for (size_t t = 0; t < wanted.size(); ++t) {
    tables[t].removed = wanted[t].removed;
    tables[t].rows = wanted[t].rows;
    tables[t].place = static_cast<uint32_t>(wanted[t].place);
    tables[t].planes = wanted[t].planes;
    tables[t].wanted = wanted[t].wanted;
    tables[t].end = wanted[t].rows;
  }
  ScanHeader& header = scan->header();
  header.magic = kScanMagic;
  header.version = kFormatVersion;
  header.layout_hash = ScanLayoutHash();
  header.id = id;
  header.limit = limit;
  header.n_tables = static_cast<uint32_t>(wanted.size());
  return scan;
}

Result<std::unique_ptr<ScanFile>> ScanFile::Open(const std::string& path, uint64_t id) {
  std::unique_ptr<ScanFile> scan(new ScanFile());
  size_t begin = 0;
  {
    // The header determines the size of the file.
    TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, sizeof(ScanHeader), kPageBytes));
    const auto& header = *reinterpret_cast<const ScanHeader*>(file->data());
    // The value that is checked is also the one that is used, because the file is shared.
    const uint32_t n_tables = __atomic_load_n(&header.n_tables, __ATOMIC_RELAXED);
    if (header.magic != kScanMagic || header.id != id || n_tables > kMaxTables) {
      return Damaged(path, "no file of a scan with this id");
    }
    TSPS_RETURN_IF_ERROR(CheckFormat(header.version, header.layout_hash, ScanLayoutHash(), path));
    scan->limit_ = header.limit;
    begin = sizeof(ScanHeader) + n_tables * sizeof(ScanTable);
  }
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, begin, begin));
  std::vector<char> copy(begin - sizeof(ScanHeader));
  RacyRead(copy.data(), file->data() + sizeof(ScanHeader), copy.size());
  const auto* const tables = reinterpret_cast<const ScanTable*>(copy.data());
  for (size_t t = 0; t < copy.size() / sizeof(ScanTable); ++t) {
    const Wanted wanted{tables[t].place, tables[t].removed, tables[t].planes, tables[t].rows,
                        tables[t].wanted};
    if (wanted.rows > kMaxRowNumber || wanted.place >= kMaxTables) {
      return Damaged(path, "table ", t, " in place ", wanted.place, " with ", wanted.rows, " rows");
    }
    scan->tables_.push_back(wanted);
  }
  begin = FileBytes(scan->tables_);
  TSPS_ASSIGN_OR_RETURN(file, MappedFile::Open(path, begin, begin));
  TSPS_RETURN_IF_ERROR(file->MakeWritable());
  scan->Place(std::move(file));
  return scan;
}

}  // namespace tsps
