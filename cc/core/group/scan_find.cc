// Lookups by a scan.
#include <algorithm>
#include <atomic>

#include "core/group/group_impl.h"
#include "core/group/probe.h"
#include "core/group/scan.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr size_t kProbeGrain = 4096;  // keys

}  // namespace

void Scan::TakeKeys(Part& part) {
  if (part.keys) return;
  part.keys = true;
  for (const auto& [row, image] : part.images) {
    if (IsLive(part, image)) part.by_key.emplace(KeyOf(part, image), row);
  }
}

Status Scan::Confirm(int table, const int64_t* keys, uint32_t* rows,
                     const std::vector<uint32_t>& positions, Executor& executor,
                     std::vector<uint32_t>* absent) {
  const PlaneList& list = Planes(table);
  std::vector<uint32_t> numbers(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint32_t row = rows[positions[i]];
    numbers[i] = row < StateOf(table).rows ? row : kAbsentRow;
  }
  std::vector<int64_t> keys_of_rows(positions.size());
  std::vector<uint32_t> changed(positions.size(), kFreeRow);
  char* planes[kMaxPlanes] = {};
  planes[list.trained()] = reinterpret_cast<char*>(keys_of_rows.data());
  planes[list.trained() + 1] = reinterpret_cast<char*>(changed.data());
  TSPS_RETURN_IF_ERROR(Copy(table, numbers.data(), numbers.size(), planes, executor));
  absent->clear();
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint32_t position = positions[i];
    if (changed[i] != kFreeRow && keys_of_rows[i] == keys[position]) continue;
    rows[position] = kAbsentRow;
    absent->push_back(position);
  }
  return Status();
}

bool Scan::Probe(const Part& part, const int64_t* keys, size_t n, uint32_t* rows,
                 Executor& executor) {
  constexpr int kTries = 4;
  const size_t place = PlaceOf(part.table);
  const std::atomic<uint64_t>& rebuilds = group_.impl_->control->live().rebuilds;
  for (int tries = 0; tries < kTries; ++tries) {
    const uint64_t before = rebuilds.load(std::memory_order_acquire);
    State now;
    group_.impl_->control->LoadLastState(&now);
    if (place >= now.tables.size() || IsVacant(now.tables[place]) ||
        now.tables[place].removed != RemovedBefore(part.table) ||
        !part.files->CheckIndexFiles(now.tables[place]).ok()) {
      return false;
    }
    std::atomic<bool> astray{false};
    executor.ParallelFor(n, kProbeGrain, [&](size_t begin, size_t end) {
      if (ProbeRows(*part.files, now.tables[place], keys + begin, end - begin, rows + begin) >= 0) {
        astray = true;
      }
    });
#ifndef __SANITIZE_THREAD__
    std::atomic_thread_fence(std::memory_order_acquire);
#endif
    if ((before & 1) == 0 && rebuilds.load(std::memory_order_acquire) == before && !astray) {
      return true;
    }
  }
  return false;
}

Status Scan::Find(int table, const int64_t* keys, size_t n, uint32_t* rows, Executor& executor) {
  if (!announced()) {
    return ReadInPlace([&](const ReadView& view) {
      view.FindRows(table, keys, n, rows);
      return Status();
    });
  }
  Part& part = PartOf(table);
  std::fill_n(rows, n, kAbsentRow);
  // Reads the current index without waiting for anybody. Confirm finds what is wrong.
  const bool all_found = Probe(part, keys, n, rows, executor);
  std::vector<uint32_t> positions(n);
  for (size_t i = 0; i < n; ++i) positions[i] = static_cast<uint32_t>(i);
  std::vector<uint32_t> absent;
  TSPS_RETURN_IF_ERROR(Confirm(table, keys, rows, positions, executor, &absent));
  if (absent.empty()) return Status();
  // The other keys were erased meanwhile or never existed, or the writer was moving their entries.
  if (!all_found) {
    positions.swap(absent);
    std::vector<int64_t> remaining(positions.size());
    std::vector<uint32_t> remaining_rows(positions.size());
    for (size_t i = 0; i < remaining.size(); ++i) remaining[i] = keys[positions[i]];
    const auto find = [&](const ReadView& view) {
      view.FindRows(table, remaining.data(), remaining.size(), remaining_rows.data());
      return Status();
    };
    TSPS_RETURN_IF_ERROR(group_.Read(find, options_.timeout_s));
    for (size_t i = 0; i < remaining.size(); ++i) rows[positions[i]] = remaining_rows[i];
    TSPS_RETURN_IF_ERROR(Confirm(table, keys, rows, positions, executor, &absent));
  }
  TakeKeys(part);  // Confirm has read the images
  for (const uint32_t position : absent) {
    const auto image = part.by_key.find(keys[position]);
    if (image != part.by_key.end()) rows[position] = image->second;
  }
  return Status();
}

Status ReadOrScan(Group& group, const std::vector<int>& tables, size_t keys, bool beside_writer,
                  const Scan::Options& options, const std::function<Status(const ReadView&)>& read,
                  const std::function<Status(Scan&)>& scan) {
  // For this many keys, a writer would have to wait longer than for those of a batch.
  constexpr size_t kMany = size_t{1} << 19;
  constexpr size_t kFew = 4096;
  // Most attempts have a turn: a reader that loses so often takes longer than the writer waits.
  constexpr int kAttempts = 16;
  if (keys < kFew) return group.Read(read, options.timeout_s);
  if (keys < kMany || !beside_writer || !group.WrittenElsewhere()) {
    TSPS_ASSIGN_OR_RETURN(const bool done, group.TryRead(read, options.timeout_s, kAttempts));
    if (done) return Status();
  }
  Scan::Options scan_options = options;
  scan_options.lookup = true;
  const auto begun = Scan::Begin(group, tables, scan_options);
  const Status status = begun.ok() ? scan(**begun) : begun.status();
  // Other scans have the places, or the writer has ended this one.
  return status.code() == Code::kUnavailable ? group.Read(read, options.timeout_s) : status;
}

}  // namespace tsps
