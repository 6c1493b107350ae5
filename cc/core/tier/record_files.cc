#include "core/tier/record_files.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/base/limits.h"
#include "core/os/directory.h"

namespace tsps {
namespace {

// Reads the number of a file of records. Returns false for other files.
bool ParseName(const std::string& name, uint32_t* number) {
  constexpr char kPrefix[] = "records.";
  if (name.rfind(kPrefix, 0) != 0 || name.size() > sizeof(kPrefix) - 1 + 9) return false;
  const std::string digits = name.substr(sizeof(kPrefix) - 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = static_cast<uint32_t>(std::stoul(digits));
  return true;
}

}  // namespace

std::vector<uint32_t> RecordFilesIn(const std::string& folder) {
  std::vector<uint32_t> numbers;
  uint32_t number;
  for (const std::string& name : EntriesOf(folder)) {
    if (ParseName(name, &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Status RecordFiles::Load(IoThreads& threads) {
  const std::vector<uint32_t> numbers = RecordFilesIn(folder_);
  std::vector<RecordFileId> ids(numbers.size());
  std::vector<uint64_t> bytes(numbers.size());
  TSPS_RETURN_IF_ERROR(
      threads.Run(numbers.size(), /*urgent=*/true, [&](size_t i, const PageBuffer&) -> Status {
        if (numbers[i] >= layout_.max_files()) {
          return Damaged(RecordFile::PathOf(folder_, numbers[i]),
                         "its number is too large: a log has at most ", layout_.max_files(),
                         " files");
        }
        TSPS_ASSIGN_OR_RETURN(const auto file, RecordFile::Open(folder_, numbers[i], layout_));
        ids[i] = file->id();
        TSPS_ASSIGN_OR_RETURN(bytes[i], file->Bytes());
        return {};
      }));
  const std::lock_guard<std::mutex> lock(mutex_);
  files_.clear();
  numbers_ = 0;
  bytes_.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < ids.size(); ++i) AddLocked(ids[i], bytes[i]);
  ended_ = numbers;
  empty_.clear();
  live_.assign(numbers_, 0);
  return {};
}

void RecordFiles::ContinueAfter(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  next_sequence_ = std::max(next_sequence_, sequence + 1);
}

bool RecordFiles::Has(uint32_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_.count(number) != 0;
}

RecordKind RecordFiles::KindOf(uint32_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_.at(number).kind;
}

Result<RecordFileId> RecordFiles::Add(RecordKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t most = layout_.max_files();
  if (files_.size() >= most) {
    return Error(Code::kResourceExhausted, folder_, " has ", files_.size(),
                 " files of records, the most that a log can have. Nothing was changed. Shard "
                 "the table over more nodes");
  }
  // A number is used again as late as possible.
  uint32_t number = next_number_ % most;
  while (files_.count(number) != 0) number = (number + 1) % most;
  const RecordFileId id{number, kind, next_sequence_};
  AddLocked(id, 0);
  return id;
}

void RecordFiles::AddLocked(const RecordFileId& id, uint64_t bytes) {
  files_[id.number] = {id.kind, id.sequence, bytes};
  numbers_ = std::max(numbers_, id.number + 1);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (id.sequence < next_sequence_) return;
  next_sequence_ = id.sequence + 1;
  next_number_ = id.number + 1;
}

void RecordFiles::Grow(uint32_t number, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  File& file = files_.at(number);
  bytes_.fetch_add(bytes - file.bytes, std::memory_order_relaxed);
  file.bytes = bytes;
}

void RecordFiles::Remove(uint32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto file = files_.find(number);
  bytes_.fetch_sub(file->second.bytes, std::memory_order_relaxed);
  files_.erase(file);
}

size_t RecordFiles::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_.size();
}

void RecordFiles::End(uint32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_.push_back(number);
}

void RecordFiles::ReserveCounts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (live_.size() < numbers_) live_.resize(numbers_);
  empty_.reserve(empty_.size() + files_.size());  // each file becomes empty at most once
}

void RecordFiles::RemoveEmpty(const std::function<bool(uint32_t number)>& remove) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    empty_.insert(empty_.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }
  size_t kept = 0;
  for (const uint32_t number : empty_) {
    if (live(number) > 0 || !Has(number)) continue;
    if (remove(number)) {
      Remove(number);
    } else {
      empty_[kept++] = number;
    }
  }
  empty_.resize(kept);
}

std::vector<uint32_t> RecordFiles::Emptiest(size_t bytes, size_t most,
                                            const std::function<bool(uint32_t)>& may) const {
  struct Choice {
    double worth;
    uint32_t number;
  };
  std::vector<Choice> choices;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [number, file] : files_) {
    if (live(number) == 0 || !may(number)) continue;
    const double full =
        static_cast<double>(live(number)) / static_cast<double>(layout_.records_per_file);
    const auto age = static_cast<double>(next_sequence_ - file.sequence);
    // A file that is full of live records is worth a copy when it is very old.
    choices.push_back(
        {(1.02 - full) / (1 + full) * (1 + age / static_cast<double>(1 + files_.size())), number});
  }
  std::sort(choices.begin(), choices.end(),
            [](const Choice& a, const Choice& b) { return a.worth > b.worth; });
  std::vector<uint32_t> numbers;
  size_t freed = 0;
  for (size_t i = 0; i < choices.size() && i < most && freed < bytes; ++i) {
    const uint32_t number = choices[i].number;
    numbers.push_back(number);
    const uint64_t bytes_of_file = files_.at(number).bytes;
    freed += bytes_of_file - std::min(bytes_of_file, live(number) * uint64_t{layout_.record_bytes});
  }
  return numbers;
}

}  // namespace tsps
