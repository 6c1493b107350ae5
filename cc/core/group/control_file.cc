#include "core/group/control_file.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/futex.h"
#include "core/base/racy_copy.h"

namespace tsps {
namespace {

// Orders earlier reads before the next read of the sequence word.
void AcquireFence() {
#ifndef __SANITIZE_THREAD__  // it supports no fences, and does not check the racy reads
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

uint32_t SealedCrc(const Sealed& sealed, uint64_t epoch) {
  const uint64_t words[] = {sealed.step, sealed.run_id, sealed.peers, epoch};
  return Crc32c(0, words, sizeof(words));
}

}  // namespace

GroupDraw GroupDraw::Random() {
  std::random_device random;
  const auto word = [&] { return uint64_t{random()} << 32 | random(); };
  return {word() | 1, word()};
}

uint32_t GroupLayoutHash() {
  const uint64_t sizes[] = {sizeof(GroupFileHeader), sizeof(LiveState), sizeof(CommitRecord),
                            sizeof(UndoHeader),      kRecordOffset,     kRecordBytes,
                            uint64_t{kMaxTables},    TableLayoutHash()};
  return Crc32c(0, sizes, sizeof(sizes));
}

Result<std::unique_ptr<ControlFile>> ControlFile::Create(const std::string& path,
                                                         const std::string& uuid,
                                                         const GroupDraw& draw) {
  if (uuid.size() != sizeof(GroupFileHeader::uuid)) {
    return Error(Code::kInvalidArgument,
                 "a group's uuid must have 32 hexadecimal digits. Received: '", uuid, "'");
  }
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(path, kControlBytes, kControlBytes));
  GroupFileHeader header = {};
  header.magic = kGroupMagic;
  header.version = kFormatVersion;
  header.layout_hash = GroupLayoutHash();
  std::memcpy(header.uuid, uuid.data(), sizeof(header.uuid));
  header.life = draw.life;
  header.index_seed = draw.index_seed;
  header.crc = HeaderCrc(header);
  // The records are all zero, which is epoch 0 and step 0, without tables. The header is written
  // last, so that a killed creation leaves no valid group.
  std::memcpy(file->data(), &header, sizeof(header));
  return std::unique_ptr<ControlFile>(new ControlFile(std::move(file)));
}

Result<std::unique_ptr<ControlFile>> ControlFile::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, 0, kControlBytes));
  GroupFileHeader header = {};
  std::memcpy(&header, file->data(), std::min(file->size(), sizeof(header)));
  if (file->size() >= sizeof(header.magic) && header.magic != kGroupMagic) {
    return Error(Code::kDataLoss, path, " is not the control file of a tf_sparse_ps group");
  }
  if (file->size() < sizeof(header)) {
    return Error(Code::kDataLoss, path, " is truncated: it has ", file->size(), " bytes, and ",
                 kControlBytes, " are expected");
  }
  TSPS_RETURN_IF_ERROR(CheckFormat(header.version, header.layout_hash, GroupLayoutHash(), path));
  if (header.crc != HeaderCrc(header))
    return Error(Code::kDataLoss, path, " is damaged: checksum mismatch");
  if (file->size() < kControlBytes) {
    return Error(Code::kDataLoss, path, " is truncated: it has ", file->size(), " bytes, and ",
                 kControlBytes, " are expected");
  }
  return std::unique_ptr<ControlFile>(new ControlFile(std::move(file)));
}

std::string ControlFile::uuid() const {
  return std::string(file_->data() + offsetof(GroupFileHeader, uuid),
                     sizeof(GroupFileHeader::uuid));
}

GroupDraw ControlFile::draw() const {
  const auto& header = *reinterpret_cast<const GroupFileHeader*>(file_->data());
  return {header.life, header.index_seed};
}

bool ControlFile::Validate(uint64_t sequence) const {
  AcquireFence();
  return live().sequence.load(std::memory_order_acquire) == sequence || TSPS_FAULT_OFF("seqlock");
}

bool ControlFile::ValidateEpoch(uint64_t sequence) const {
  AcquireFence();
  return this->sequence() / 2 == sequence / 2;
}

void ControlFile::LoadState(uint64_t epoch, State* state) const {
  const CommitRecord& from = record(epoch);
  RacyRead(&state->epoch, &from.epoch, sizeof(state->epoch));
  RacyRead(&state->step, &from.step, sizeof(state->step));
  RacyRead(&state->version, &from.version, sizeof(state->version));
  RacyRead(&state->changes, &from.changes, sizeof(state->changes));
  RacyRead(&state->recorded_tables, &from.n_tables, sizeof(state->recorded_tables));
  state->tables.resize(std::min<uint32_t>(state->recorded_tables, kMaxTables));
  RacyRead(state->tables.data(), from.tables, state->tables.size() * sizeof(TableState));
  TableState next = {};
  if (state->tables.size() < kMaxTables) {
    RacyRead(&next, &from.tables[state->tables.size()], sizeof(next));
  }
  state->more_tables = next.flags != 0 || next.segments != 0 || next.removed != 0;
}

uint64_t ControlFile::LoadLastState(State* state) const {
  while (true) {
    const uint64_t now = sequence();
    LoadState(now / 2, state);
    if (ValidateEpoch(now)) return now;
  }
}

uint64_t ControlFile::Committed(const uint64_t CommitRecord::* field) const {
  while (true) {
    const uint64_t now = sequence();
    uint64_t value = 0;
    RacyRead(&value, &(record(now / 2).*field), sizeof(value));
    if (ValidateEpoch(now)) return value;
  }
}

uint64_t ControlFile::CommittedStep() const { return Committed(&CommitRecord::step); }

uint64_t ControlFile::CommittedVersion() const { return Committed(&CommitRecord::version); }

std::atomic<uint64_t>* ControlFile::Announcements() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!file_->CheckInPlace().ok()) return nullptr;  // it may be another group's by now
  if (writable_ == nullptr) {
    auto mapping = MappedFile::Open(path(), kControlBytes, kControlBytes);
    if (!mapping.ok() || !(*mapping)->MakeWritable().ok()) return nullptr;
    writable_ = std::move(*mapping);
  }
  return reinterpret_cast<LiveState*>(writable_->data() + kLiveOffset)->scans;
}

void ControlFile::AwaitChange(uint64_t sequence, int ms) const {
  FutexWait(live().sequence, sequence, ms);
}

std::string ControlFile::TableName(size_t place) const {
  TableNameEntry entry;
  RacyRead(&entry, file_->data() + kNamesOffset + place * sizeof(entry), sizeof(entry));
  return std::string(entry.name, strnlen(entry.name, sizeof(entry.name)));
}

void ControlFile::SetTableName(size_t place, const std::string& name) {
  TableNameEntry entry = {};
  std::memcpy(entry.name, name.data(), name.size());
  std::memcpy(file_->data() + kNamesOffset + place * sizeof(entry), &entry, sizeof(entry));
}

void ControlFile::Begin(uint64_t epoch) {
  live().undo_epoch.store(epoch + 1, std::memory_order_release);
  TSPS_FAULT_POINT("begin.undo_valid");
  live().sequence.store(2 * epoch + 1, std::memory_order_release);
#ifndef __SANITIZE_THREAD__
  // Orders the odd sequence before every store of the mutation.
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  TSPS_FAULT_POINT("begin.odd");
}

void ControlFile::StoreState(const State& state) {
  CommitRecord& to = record(state.epoch);
  to.epoch = state.epoch;
  to.step = state.step;
  to.version = state.version;
  to.changes = state.changes;
  to.n_tables = static_cast<uint32_t>(state.tables.size());
  std::copy(state.tables.begin(), state.tables.end(), to.tables);
}

void ControlFile::BeginRebuild() {
  live().rebuilds.fetch_or(1);
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void ControlFile::EndRebuild() {
  std::atomic<uint64_t>& rebuilds = live().rebuilds;
  if ((rebuilds.load() & 1) != 0) rebuilds.fetch_add(1, std::memory_order_release);
}

void ControlFile::Seal(const State& next, const Sealed& sealed) {
  StoreState(next);
  TSPS_FAULT_POINT("seal.record");
  SealedState& to = live().sealed;
  to.step = sealed.step;
  to.run_id = sealed.run_id;
  to.peers = sealed.peers;
  to.crc = SealedCrc(sealed, next.epoch);
  to.epoch.store(next.epoch, std::memory_order_release);
  TSPS_FAULT_POINT("seal.sealed");
}

Result<std::optional<Sealed>> ControlFile::SealedAfter(uint64_t epoch) const {
  const SealedState& from = live().sealed;
  if (from.epoch.load(std::memory_order_acquire) != epoch + 1) return std::optional<Sealed>();
  const Sealed sealed{from.step, from.run_id, from.peers};
  if (from.crc != SealedCrc(sealed, epoch + 1) && !TSPS_FAULT_OFF("damage")) {
    return Damaged(path(), "it does not show who decides step ", sealed.step,
                   ", which is written and sealed: checksum mismatch");
  }
  return std::optional<Sealed>(sealed);
}

void ControlFile::Publish(const State& state) {
  StoreState(state);
  TSPS_FAULT_POINT("publish.record");
  live().sequence.store(2 * state.epoch, std::memory_order_release);
  TSPS_FAULT_POINT("publish.even");
  FutexWakeAll(live().sequence);
}

}  // namespace tsps
