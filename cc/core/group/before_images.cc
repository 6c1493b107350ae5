#include "core/group/before_images.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/base/prefetch.h"

namespace tsps {
namespace {

constexpr uint64_t kProbeIntervalNs = 100'000'000;
constexpr uint64_t kKeptNs = 2'000'000'000;  // an unused images file is kept for another scan
constexpr size_t kGrain = 256;
constexpr size_t kImagesAhead = 16;

}  // namespace

BeforeImages::BeforeImages(std::string group_path, ControlFile& control, StorageReserver& reserver)
    : pid_(getpid()), group_path_(std::move(group_path)), control_(control), reserver_(reserver) {
  for (size_t place = 0; place < kMaxScans; ++place) {
    if (control_.live().scans[place].load() == 0) RemoveImages(place);
  }
}

BeforeImages::~BeforeImages() {
  if (getpid() != pid_) {  // in a forked child, the files belong to the parent
    for (Images& images : images_) static_cast<void>(images.file.release());
    return;
  }
  for (size_t place = 0; place < kMaxScans; ++place) {
    // A scan in progress needs its images.
    if (control_.live().scans[place].load() == 0) RemoveImages(place);
    reserver_.Discard(std::move(images_[place].file));
  }
}

// A step may be waiting, so the helper thread frees the pages, of which there may be many.
void BeforeImages::RemoveImages(size_t place) {
  // Otherwise the file belongs to another group.
  if (control_.file().CheckInPlace().ok()) unlink(ScanImagesPath(group_path_, place).c_str());
  reserver_.Discard(std::move(images_[place].file));
}

Status BeforeImages::OpenImages(size_t place, uint64_t begin, uint64_t bytes, uint64_t limit) {
  std::unique_ptr<MappedFile>& file = images_[place].file;
  const std::string path = ScanImagesPath(group_path_, place);
  const bool smaller = limit > images_[place].limit;  // it was opened for a smaller scan
  if (file != nullptr && (smaller || (begin == 0 && !file->CheckInPlace().ok()))) {
    reserver_.Discard(std::move(file));
  }
  if (file == nullptr) {
    TSPS_RETURN_IF_ERROR(control_.file().CheckInPlace());
    auto opened = MappedFile::Open(path, begin, limit);
    if (opened.ok()) {
      TSPS_RETURN_IF_ERROR((*opened)->MakeWritable());
    } else {
      if (begin > 0) return opened.status();
      unlink(path.c_str());
      opened = MappedFile::Create(path, 0, limit);
      TSPS_RETURN_IF_ERROR(opened.status());
    }
    file = std::move(*opened);
    file->KeepSmallPages();  // they are written once, and read once
    images_[place].limit = limit;
  }
  return reserver_.Ensure(*file, begin + bytes);
}

void BeforeImages::End(size_t place, ScanEnd why) {
  Open& scan = open_[place];
  if (scan.file != nullptr) scan.file->header().ended.store(static_cast<uint32_t>(why));
  uint64_t id = scan.id;
  control_.live().scans[place].compare_exchange_strong(id, 0);
  scan = Open();
}

bool BeforeImages::Refresh(uint64_t epoch) {
  bool announced = false;
  for (size_t place = 0; place < kMaxScans; ++place) announced |= Look(place, epoch);
  return announced;
}

bool BeforeImages::Look(size_t place, uint64_t epoch) {
  Open& scan = open_[place];
  const uint64_t id = control_.live().scans[place].load(std::memory_order_seq_cst);
  const bool announced = id != 0 && id != scan.id;
  Images& images = images_[place];
  if (id != scan.id) {
    if (scan.id != 0) images.used_ns = NowNs();
    scan = Open();
    scan.id = id;
  }
  if (id == 0) {
    if (images.file != nullptr && NowNs() > images.used_ns + kKeptNs) RemoveImages(place);
    return false;
  }
  const std::string path = ScanPath(group_path_, place, id);
  if (announced) {
    auto file = ScanFile::Open(path, id);
    auto probe = LockProbe::Open(ScanLockPath(group_path_, place));
    // The writer cannot serve this scan. The scan notices that its id was removed.
    if (!file.ok() || !probe.ok()) {
      End(place, ScanEnd::kNoRoom);
      return false;
    }
    scan.file = std::move(*file);
    scan.probe = std::move(*probe);
    uint64_t not_seen = 0;  // an earlier writer may have seen the scan
    scan.file->header().seen.compare_exchange_strong(not_seen, epoch + 1);
  }
  const uint64_t now = NowNs();
  if (now < scan.probed_ns + kProbeIntervalNs) return announced;
  scan.probed_ns = now;
  if (scan.probe->Held()) return announced;
  unlink(path.c_str());  // its process ended without removing it
  End(place, ScanEnd::kNot);
  RemoveImages(place);
  return false;
}

bool BeforeImages::any() const {
  for (const std::atomic<uint64_t>& scan : control_.live().scans) {
    if (scan.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

void BeforeImages::Save(const std::vector<TouchedRows>& touched,
                        const std::vector<LeavingRecords>& leaving, Executor* executor) {
  if (TSPS_FAULT_OFF("scan_images")) return;
  for (size_t place = 0; place < kMaxScans; ++place) {
    if (open_[place].id == 0) continue;
    Save(place, touched, leaving, executor);
    if (open_[place].id == 0) continue;  // it has ended
    ScanHeader& header = open_[place].file->header();
    if (header.complete.load(std::memory_order_relaxed) == 0) {
      header.complete.store(header.seen.load(), std::memory_order_release);
    }
  }
}

void BeforeImages::Save(size_t place, const std::vector<TouchedRows>& touched,
                        const std::vector<LeavingRecords>& leaving, Executor* executor) {
  ScanFile& file = *open_[place].file;
  std::vector<Part> parts;
  uint64_t bytes = 0;
  for (const TouchedRows& rows : touched) {
    for (size_t t = 0; t < file.tables().size(); ++t) {
      const ScanFile::Wanted& table = file.tables()[t];
      if (table.place != rows.place || table.removed != rows.removed) continue;
      if (table.planes != rows.planes->generation) return End(place, ScanEnd::kPlanes);
      Part part{&rows, t, table.wanted, {}};
      const uint64_t passed = file.passed(t).load(std::memory_order_acquire);
      const uint64_t end = std::min(table.rows, file.end(t).load(std::memory_order_relaxed));
      for (size_t i = 0; i < rows.n; ++i) {
        const uint32_t row = rows.rows[i];
        if (row >= passed && row < end && !file.Saved(t, row)) part.rows.push_back(row);
      }
      if (part.rows.empty()) continue;
      bytes += ScanRecordBytes(part.rows.size(), RowBytesOf(*rows.planes, table.wanted));
      parts.push_back(std::move(part));
    }
  }
  std::vector<std::pair<size_t, const std::vector<RecordMove>*>> moves;  // by the scan's table
  for (const LeavingRecords& records : leaving) {
    for (size_t t = 0; t < file.tables().size(); ++t) {
      const ScanFile::Wanted& table = file.tables()[t];
      if (table.place != records.place || table.removed != records.removed) continue;
      if (records.moves->empty()) continue;
      bytes += ScanRecordBytes(records.moves->size(), kScanMoveBytes);
      moves.emplace_back(t, records.moves);
    }
  }
  if (parts.empty() && moves.empty()) return;
  const uint64_t begin = file.header().end.load(std::memory_order_relaxed);
  if (begin > file.limit() || bytes > file.limit() - begin) return End(place, ScanEnd::kLimit);
  if (!OpenImages(place, begin, bytes, file.limit()).ok()) return End(place, ScanEnd::kNoRoom);
  images_[place].used_ns = NowNs();
  uint64_t end = begin;
  for (const Part& part : parts) {
    auto* const record = reinterpret_cast<ScanRecord*>(images_[place].file->data() + end);
    Write(part, record, executor);
    end += record->bytes;
    TSPS_FAULT_POINT("scan.record");
  }
  for (const auto& [t, left] : moves) {
    auto* const record = reinterpret_cast<ScanRecord*>(images_[place].file->data() + end);
    WriteMoves(t, *left, record);
    end += record->bytes;
  }
  file.header().end.store(end, std::memory_order_release);
  TSPS_FAULT_POINT("scan.end");
  for (const Part& part : parts) {
    for (const uint32_t row : part.rows) file.SetSaved(part.t, row);
  }
  // Orders the bits before every store to these rows.
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  TSPS_FAULT_POINT("scan.bits");
}

void BeforeImages::WriteMoves(size_t table, const std::vector<RecordMove>& moves,
                              ScanRecord* record) {
  *record = ScanRecord();
  record->n = moves.size();
  record->row_bytes = kScanMoveBytes;
  record->bytes = ScanRecordBytes(record->n, kScanMoveBytes);
  record->table = static_cast<uint32_t>(table);
  record->kind = kScanMoves;
  std::memcpy(ScanImages(record), moves.data(), moves.size() * sizeof(RecordMove));
}

void BeforeImages::Write(const Part& part, ScanRecord* record, Executor* executor) {
  const PlaneList& list = *part.touched->planes;
  std::vector<const Plane*> planes;
  for (size_t p = 0; p < list.planes.size(); ++p) {
    if ((part.wanted >> p & 1) != 0) planes.push_back(&list.planes[p]);
  }
  const size_t n = part.rows.size();
  *record = ScanRecord();
  record->n = n;
  record->row_bytes = static_cast<uint32_t>(RowBytesOf(list, part.wanted));
  record->bytes = ScanRecordBytes(n, record->row_bytes);
  record->table = static_cast<uint32_t>(part.t);
  std::memcpy(ScanRows(record), part.rows.data(), n * sizeof(uint32_t));
  const auto copy = [&](size_t first, size_t last) {
    char* to = ScanImages(record) + first * record->row_bytes;
    for (size_t i = first; i < last; ++i) {
      for (const Plane* const wanted : planes) {
        const Plane& plane = *wanted;
        if (i + kImagesAhead < last)
          Prefetch(plane.row(part.rows[i + kImagesAhead]), plane.row_bytes);
        std::memcpy(to, plane.row(part.rows[i]), plane.row_bytes);
        to += plane.row_bytes;
      }
    }
  };
  if (executor == nullptr) return copy(0, n);
  executor->ParallelFor(n, kGrain, copy);
}

}  // namespace tsps
