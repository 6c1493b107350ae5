// Scan: reads tables of a group as of one committed state, for as long as it takes, beside any
// writer. For what is too long for Group::Read(): all keys, all rows, very many of them.
//
// It announces itself in the group (scan_file.h). The writer then puts images of the rows that it
// is going to write into the scan's file, and goes on; it never waits for a scan. A scan waits for
// the writer once, at its beginning, until no mutation is half done, and for the rest only when it
// looks keys up that the index does not have. For one that others decide about (Group::Seal) it
// does not wait: it makes images of what that has written itself, from the undo log
// (scan_sealed.cc).
//
// Where the group cannot be written to (a read-only file system), and while nobody has recovered
// what a killed writer left, a scan cannot announce itself: it then reads as Group::Read() does,
// and is Unavailable, to be begun again, when the group has changed meanwhile. The same where there
// is no room for its file.
//
// Unavailable, too: the writer had to end it (Status says why).
#ifndef TFSPS_CORE_GROUP_SCAN_H_
#define TFSPS_CORE_GROUP_SCAN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/group.h"
#include "core/group/mapped_tables.h"
#include "core/group/overlay.h"
#include "core/group/scan_announcement.h"
#include "core/group/scan_file.h"
#include "core/table/planes.h"
#include "core/tier/record_scan.h"

namespace tsps {

// What changed of a table since a change generation.
struct Changes {
  bool everything = false;       // it is not known: all keys may have been written, others erased
  std::vector<int64_t> written;  // all keys, if `everything`
  std::vector<int64_t> erased;   // each once; empty, if `everything`
};

// Not thread-safe. The group must outlive it.
class Scan {
 public:
  struct Options {
    // Bytes of images at most. 0: a quarter of the tables' bytes, and at least 1 GiB.
    uint64_t limit = 0;
    double timeout_s = 30.0;  // of each wait for the writer
    // What is read but keys and change generations: the images have no more.
    bool embedding = true;
    bool slots_and_metadata = true;
    // Of saves and checks are all places in the group; a lookup, which can read in another way,
    // leaves them half, and does not wait for one.
    bool lookup = false;
  };
  // Of lookups.
  static Options RowsAlone() {
    Options options;
    options.slots_and_metadata = false;
    return options;
  }
  // Of these tables, or of all.
  static Result<std::unique_ptr<Scan>> Begin(Group& group, const std::vector<int>& tables,
                                             const Options& options);
  static Result<std::unique_ptr<Scan>> Begin(Group& group, const std::vector<int>& tables) {
    return Begin(group, tables, Options());
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // --- The committed state. ---
  uint64_t step() const { return state_.step; }
  OptimizerUse TrainedBy(int table) const {
    return {StateOf(table).optimizer_id, StateOf(table).optimizer_steps};
  }
  uint64_t version() const { return state_.version; }
  uint32_t changes() const { return state_.changes; }  // the change generation
  const std::vector<int>& tables() const { return tables_; }
  const TableState& StateOf(int table) const;
  uint64_t RowsOf(int table) const;  // those on disk included
  const PlaneList& Planes(int table) const { return *PartOf(table).list; }

  // Live rows of a table, up to n, in the order of their numbers, and then those on disk, from
  // where the last call ended. Into planes[p] go their bytes in plane p of the table's list; null:
  // not wanted. Returns how many there were: 0 at the end.
  Result<size_t> Next(int table, size_t n, int64_t* keys, char* const* planes);
  // The same for rows on disk alone; in no order that means anything. Next has none of them then.
  Result<size_t> NextOnDisk(int table, size_t n, int64_t* keys, char* const* planes);
  // Row numbers of keys in memory, else kAbsentRow; any number of them. Not of rows that Next has
  // passed.
  Status Find(int table, const int64_t* keys, size_t n, uint32_t* rows, Executor& executor);
  // Of keys that have no row in memory: calls visit(i, payload), on many threads, for those that
  // have one on disk (table/row_records.h).
  Status ReadRecords(int table, const int64_t* keys, size_t n, const RecordStore::Visit& visit);
  // What was written or erased in a change generation (GroupWriter::MarkChanges) or after it. A key
  // that was both is in both: it has been written after it was erased. After a kill there may be
  // more, never less. As Next, of a table whose rows it has not passed.
  Result<Changes> ChangedSince(int table, uint32_t generation);
  // Its two parts, for those that want the rows, too. The keys that were erased, each once; none:
  // it is not known what changed. And as Next, of rows that were written since.
  Result<std::optional<std::vector<int64_t>>> ErasedSince(int table, uint32_t generation);
  Result<size_t> NextChanged(int table, uint32_t generation, size_t n, int64_t* keys,
                             char* const* planes);
  // Planes of rows by their numbers, of those that Options names; skips kAbsentRow.
  Status Copy(int table, const uint32_t* rows, size_t n, char* const* planes, Executor& executor);
  // Not, as long as all that was read is of one state.
  Status Check() const;
  // For how long the scan has waited for the writer, or begun again because of it, so far.
  uint64_t waited_ns() const { return waited_ns_; }

 private:
  struct Part {
    int table;
    std::shared_ptr<TableFiles> files;
    const PlaneList* list;
    uint64_t wanted;                                        // planes
    uint64_t next = 0;                                      // the row number that Next goes on with
    uint64_t live = 0;                                      // rows that it has returned
    std::unordered_map<uint32_t, const char*> images = {};  // by row
    std::unordered_map<int64_t, uint32_t> by_key = {};      // rows of images, once `keys`
    bool keys = false;
    // --- Of a tiered table. ---
    std::unique_ptr<RecordScan> records = nullptr;
    std::vector<char> payloads = {};  // of rows on disk that Next has read and not returned
    std::vector<int64_t> payload_keys = {};
    size_t payload = 0;  // the next of them
  };
  // A row that has an image, and its position among those that are read.
  struct Saved {
    uint32_t row;
    size_t at;
  };
  Scan(Group& group, std::vector<int> tables) : group_(group), tables_(std::move(tables)) {}

  // Whether this process has them mapped as of a state.
  static bool IsMapped(const Group& group, const std::vector<int>& tables, const State& state);
  // Takes a place and announces a scan of tables as large as `state` says. False if this process
  // cannot.
  Result<bool> Announce(const State& state, uint64_t deadline);
  // The committed state to read. False if there is an unfinished mutation and no writer.
  Result<bool> AwaitState(uint64_t deadline);
  // Whether the announced file fits the state, and all images are of that state.
  bool Fits() const;
  // Of a state with a sealed mutation: images of the rows that this has written. False if it was
  // decided meanwhile.
  Result<bool> TakeSealed();
  Status TakeSealed(const Overlay& overlay, Part& part);
  // False if some are not as the state says any more.
  bool MapTables();
  bool announced() const { return announcement_ != nullptr; }
  ScanFile& file() const { return announcement_->file(); }

  const Part& PartOf(int table) const;
  Part& PartOf(int table);
  size_t NumberOf(const Part& part) const { return static_cast<size_t>(&part - parts_.data()); }
  // Takes in the images that the writer has made since.
  Status TakeImages();
  void TakeKeys(Part& part);
  // False: the table has other rows on disk by now.
  Result<bool> BeginRecords(Part& part);
  // Where a plane is in an image.
  static size_t OffsetOf(const Part& part, size_t plane) {
    return RowBytesOf(*part.list, part.wanted & ((uint64_t{1} << plane) - 1));
  }
  static int64_t KeyOf(const Part& part, const char* image);
  static bool IsLive(const Part& part, const char* image);
  // Refuses planes that Options does not name.
  Status CheckWanted(const Part& part, char* const* planes) const;
  // As Copy, of the next n rows by their numbers.
  Status CopyNext(Part& part, size_t n, char* const* planes);
  // Puts images in the places of what was read of these rows.
  Status CopyImages(Part& part, const std::vector<Saved>& saved, char* const* planes);
  // All rows in memory have been looked at: as many had a key as the state says.
  Status CheckLive(const Part& part) const;
  // Row numbers of keys in the index as it is now, perhaps wrong ones. False if a key may be there
  // that was not found.
  bool Probe(const Part& part, const int64_t* keys, size_t n, uint32_t* rows, Executor& executor);
  // Of some positions: sets rows[i] to kAbsentRow unless that row was the one of keys[i]; the
  // positions of these go into `absent`.
  Status Confirm(int table, const int64_t* keys, uint32_t* rows,
                 const std::vector<uint32_t>& positions, Executor& executor,
                 std::vector<uint32_t>* absent);
  // By Group::Read.
  Status ReadInPlace(const std::function<Status(const ReadView&)>& read);
  Status CopyInPlace(int table, const uint32_t* rows, size_t n, char* const* planes);

  Group& group_;
  const std::vector<int> tables_;
  State state_;
  std::vector<Part> parts_;
  uint64_t waited_ns_ = 0;
  Options options_;
  std::unique_ptr<ScanAnnouncement> announcement_;  // null: it cannot be made
  std::unique_ptr<MappedFile> images_;              // once there are any
  uint64_t taken_ = 0;                              // bytes of its records
  std::string not_announced_;                       // why
  uint64_t sealed_ = 0;  // the sequence word, if the state is that before a sealed mutation
  std::deque<std::vector<char>> sealed_images_;
};

// For lookups: `read` on one committed state as Group::Read(). Very many keys, for which the writer
// would have to wait long, are looked up by `scan`, if another scan can begin. `keys`: how many are
// looked up in all. `beside_writer`: the caller does not know when the writer, of another process,
// writes; ranks of a job, which look up between its steps, do. `options`: of the scan.
Status ReadOrScan(Group& group, const std::vector<int>& tables, size_t keys, bool beside_writer,
                  const Scan::Options& options, const std::function<Status(const ReadView&)>& read,
                  const std::function<Status(Scan&)>& scan);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_SCAN_H_
