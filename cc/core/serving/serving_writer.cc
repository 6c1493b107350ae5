#include "core/serving/serving_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/fault_point.h"
#include "core/os/file_io.h"
#include "core/os/partial_file.h"
#include "core/serving/index_writer.h"
#include "core/serving/key_filter.h"
#include "core/serving/section_writer.h"

namespace tsps {
namespace {

constexpr uint64_t kProgressKeys = 1 << 14;
// A cover has at most this many times the keys of its layer. With 4, rows of 64 bytes take 1.3
// times their bytes in a layer, filters and index included.
constexpr uint64_t kCoveredKeys = 4;

ServingHeader HeaderOf(const ServingInfo& info) {
  ServingHeader header{};
  std::memcpy(header.magic, kServingMagic, sizeof(kServingMagic));
  header.version = kServingVersion;
  header.header_bytes = sizeof(header);
  header.dim = info.dim;
  header.row_code = static_cast<uint32_t>(info.row_code);
  header.row_type = static_cast<uint32_t>(info.row_type);
  std::memcpy(header.table_uuid, info.table_uuid.data(),
              std::min(info.table_uuid.size(), sizeof(header.table_uuid)));
  header.hash_seed = info.hash_seed;
  header.first_sequence = info.first_sequence;
  header.last_sequence = info.last_sequence;
  header.step = info.step;
  header.key_limit = info.key_limit;
  header.initializer_kind = static_cast<uint32_t>(info.initializer.kind);
  header.initializer_a = info.initializer.a;
  header.initializer_b = info.initializer.b;
  header.initializer_seed = info.initializer.seed;
  header.initializer_salt = info.initializer.salt;
  header.row_bytes = CodedBytes(info.row_code, info.dim);
  return header;
}

// The keys of a layer and of older ones, in one filter.
class Cover {
 public:
  Cover(uint64_t blocks, SectionWriter* section) : filter_(blocks, section) {}

  Status Open(const std::vector<std::shared_ptr<const ServingFile>>& files) {
    for (const auto& file : files) {
      TSPS_ASSIGN_OR_RETURN(ServingFile::Cursor cursor, file->Begin());
      cursors_.push_back(std::move(cursor));
    }
    return Status();
  }
  // Adds a key of the layer, and the keys of older layers before it.
  Status Add(uint64_t hash) {
    TSPS_RETURN_IF_ERROR(AddOlder(hash));
    return filter_.Add(hash);
  }
  Status Finish() {
    TSPS_RETURN_IF_ERROR(AddOlder(std::numeric_limits<uint64_t>::max()));
    return filter_.Finish();
  }

 private:
  Status AddOlder(uint64_t hash) {
    for (ServingFile::Cursor& cursor : cursors_) {
      while (!cursor.done() && cursor.entry().hash <= hash) {
        filter_.AddEarlier(cursor.entry().hash);
        TSPS_RETURN_IF_ERROR(cursor.Next());
      }
    }
    return Status();
  }

  FilterWriter filter_;
  std::vector<ServingFile::Cursor> cursors_;
};

// A file in progress.
class Writing {
 public:
  Writing(const ServingInfo& info, EntrySource& source, const ServingProgress& progress)
      : header_(HeaderOf(info)), source_(source), progress_(progress) {
    header_.homes = HomesFor(source.most_keys());
    header_.n_buckets = BucketsFor(header_.homes);
  }

  // Makes the file a layer with filters.
  void SetLayer(const std::vector<std::shared_ptr<const ServingFile>>& older) {
    header_.is_layer = 1;
    header_.filter_blocks = FilterBlocksFor(source_.most_keys());
    uint64_t keys = source_.most_keys();
    for (const auto& file : older) {
      keys += file->header().n_keys;
      if (keys > kCoveredKeys * source_.most_keys()) break;
      covered_.push_back(file);
      header_.cover_blocks = FilterBlocksFor(keys);
      header_.cover_from = file->header().first_sequence;
    }
  }

  Status Run(const std::string& path) {
    TSPS_ASSIGN_OR_RETURN(const std::unique_ptr<PartialFile> file, PartialFile::Create(path));
    TSPS_RETURN_IF_ERROR(Write(file->fd(), file->name()));
    // Servers may run as other users. Nobody writes the file again.
    const mode_t mask = umask(0);
    umask(mask);
    if (fchmod(file->fd(), 0444 & ~mask) != 0) return ErrnoError("cannot set the mode of", path);
    TSPS_FAULT_POINT("serving_file.written");
    if (fsync(file->fd()) != 0) return ErrnoError("cannot fsync", file->name());
    TSPS_FAULT_POINT("serving_file.synced");
    TSPS_RETURN_IF_ERROR(file->Publish());
    TSPS_FAULT_POINT("serving_file.renamed");
    return Status();
  }

 private:
  Status Write(int fd, const std::string& name) {
    const ServingSections sections = SectionsOf(header_);
    const auto write = [&](const Section& section, uint64_t most) {
      return SectionWriter(fd, name, section.at, most);
    };
    SectionWriter index = write(sections.index, sections.index.end - sections.index.at);
    SectionWriter filter = write(sections.filter, sections.filter.end - sections.filter.at);
    SectionWriter cover = write(sections.cover, sections.cover.end - sections.cover.at);
    SectionWriter rows = write(sections.rows, source_.most_keys() * header_.row_bytes);
    TSPS_RETURN_IF_ERROR(WriteKeys(&index, &filter, &cover, &rows));
    std::vector<uint32_t> crcs;
    for (SectionWriter* const section : {&index, &filter, &cover, &rows}) {
      TSPS_RETURN_IF_ERROR(section->Finish());
      crcs.insert(crcs.end(), section->crcs().begin(), section->crcs().end());
    }
    return WriteHeader(fd, name, crcs);
  }

  Status WriteKeys(SectionWriter* index, SectionWriter* filter_section,
                   SectionWriter* cover_section, SectionWriter* rows) {
    IndexWriter keys(header_.homes, static_cast<size_t>(header_.row_bytes), index, rows);
    FilterWriter filter(header_.filter_blocks, filter_section);
    Cover cover(header_.cover_blocks, cover_section);
    TSPS_RETURN_IF_ERROR(cover.Open(covered_));
    for (ServingEntry entry;;) {
      TSPS_ASSIGN_OR_RETURN(const bool more, source_.Next(&entry));
      if (!more) break;
      if (header_.is_layer == 0 && entry.row == nullptr) continue;
      TSPS_RETURN_IF_ERROR(keys.Add(entry));
      if (header_.is_layer == 1) TSPS_RETURN_IF_ERROR(filter.Add(entry.hash));
      if (header_.cover_blocks > 0) TSPS_RETURN_IF_ERROR(cover.Add(entry.hash));
      if (keys.n_keys() % kProgressKeys == 0) {
        TSPS_FAULT_POINT("serving_file.rows");
        TSPS_RETURN_IF_ERROR(progress_(keys.n_keys()));
      }
    }
    if (keys.n_keys() > source_.most_keys()) {
      return Error(Code::kInternal, "a source of at most ", source_.most_keys(), " keys had ",
                   keys.n_keys());
    }
    TSPS_RETURN_IF_ERROR(keys.Finish());
    TSPS_RETURN_IF_ERROR(filter.Finish());
    if (header_.cover_blocks > 0) TSPS_RETURN_IF_ERROR(cover.Finish());
    header_.n_keys = keys.n_keys();
    header_.n_rows = keys.n_rows();
    return progress_(keys.n_keys());
  }

  Status WriteHeader(int fd, const std::string& name, const std::vector<uint32_t>& crcs) {
    const ServingSections sections = SectionsOf(header_);
    header_.filter_at = sections.filter.at;
    header_.cover_at = sections.cover.at;
    header_.rows_at = sections.rows.at;
    header_.crcs_at = sections.crcs.at;
    header_.file_bytes = sections.crcs.end;
    const CodeError error = source_.error();
    header_.error_sum = error.sum;
    header_.error_max = error.max;
    header_.error_rows = error.rows;
    header_.error_over = error.over;
    const size_t crc_bytes = crcs.size() * sizeof(uint32_t);
    header_.crcs_crc = BlockCrc(reinterpret_cast<const char*>(crcs.data()), crc_bytes);
    header_.crc = HeaderCrc(header_);
    TSPS_RETURN_IF_ERROR(WriteAt(fd, name, crcs.data(), crc_bytes, sections.crcs.at));
    return WriteAt(fd, name, &header_, sizeof(header_), 0);
  }

  ServingHeader header_;
  EntrySource& source_;
  const ServingProgress& progress_;
  std::vector<std::shared_ptr<const ServingFile>> covered_;
};

}  // namespace

ServingInfo ServingInfo::Of(const ServingFile& file) {
  const ServingHeader& header = file.header();
  ServingInfo info;
  info.dim = header.dim;
  info.row_code = file.row_code();
  info.row_type = static_cast<PlaneType>(header.row_type);
  info.table_uuid = std::string(header.table_uuid, sizeof(header.table_uuid));
  info.hash_seed = header.hash_seed;
  info.first_sequence = header.first_sequence;
  info.last_sequence = header.last_sequence;
  info.step = header.step;
  info.key_limit = header.key_limit;
  info.initializer = file.initializer();
  return info;
}

Status WriteBase(const std::string& path, const ServingInfo& info, EntrySource& source,
                 const ServingProgress& progress) {
  return Writing(info, source, progress).Run(path);
}

Status WriteLayer(const std::string& path, const ServingInfo& info, EntrySource& source,
                  const std::vector<std::shared_ptr<const ServingFile>>& older,
                  const ServingProgress& progress) {
  Writing writing(info, source, progress);
  writing.SetLayer(older);
  return writing.Run(path);
}

}  // namespace tsps
