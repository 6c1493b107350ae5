// Scan: reads tables of a group as of one committed state, for as long as it takes, while a writer
// may be active. It serves reads that are too long for Group::Read(): all keys, all rows, or very
// many of them.
//
// A scan announces itself in the group (scan_file.h). From then on, before the writer writes to
// rows, it copies images of them to the scan's file. The writer never waits for a scan. A scan
// waits for the writer at its beginning, until no mutation is half done, and later only when it
// looks up keys that the index does not have. It does not wait for a mutation about which others
// decide (GroupWriter::Seal): it makes images of the rows that this one has written itself, from
// the undo log (scan_sealed.cc).
//
// A scan cannot announce itself if the group is on a read-only file system, if nobody has recovered
// what a killed writer left, or if there is no space for its file. It then reads as Group::Read()
// does, and returns Unavailable if the group changes meanwhile: begin another scan then.
//
// A scan also returns Unavailable, with the reason, if the writer had to end it.
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

// The changes of a table since a change generation.
struct Changes {
  bool everything = false;       // not known: all keys may have been written, and others erased
  std::vector<int64_t> written;  // if `everything`: all keys
  std::vector<int64_t> erased;   // each once; empty if `everything`
};

// Not thread-safe. The group must outlive it.
class Scan {
 public:
  struct Options {
    // The most bytes of images. 0: a quarter of the tables' bytes, but at least 1 GiB.
    uint64_t limit = 0;
    double timeout_s = 30.0;  // for each wait for the writer
    // Which planes are read in addition to keys and change generations. Images have no others.
    bool embedding = true;
    bool slots_and_metadata = true;
    // Saves and checks may use all places for scans. Lookups can read in another way, so they use
    // only half of the places and do not wait for one.
    bool lookup = false;
  };
  // Returns the options of a lookup.
  static Options RowsAlone() {
    Options options;
    options.slots_and_metadata = false;
    return options;
  }
  // Begins a scan of these tables; none: of all. Unavailable: it could not begin within the
  // timeout. NotFound: a table does not exist.
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
  uint64_t RowsOf(int table) const;  // also those on disk
  const PlaneList& Planes(int table) const { return *PartOf(table).list; }

  // Reads up to n live rows of a table, from where the last call ended: first those in memory in
  // the order of their row numbers, then those on disk. planes[p] is the target for their bytes in
  // plane p of the table's list; null: not wanted. Returns the number of rows; 0 at the end.
  Result<size_t> Next(int table, size_t n, int64_t* keys, char* const* planes);
  // Has Next continue at a row number, and end with the last row in memory. Rows that Next has
  // passed are not read again.
  void SkipTo(int table, uint64_t row);
  // The row numbers in memory end before this one. Some may be free.
  uint64_t RowNumbers(int table) const { return StateOf(table).rows; }
  // Reads rows on disk only, in no particular order. Next does not return these rows again.
  Result<size_t> NextOnDisk(int table, size_t n, int64_t* keys, char* const* planes);
  // Finds the row numbers of any number of keys; kAbsentRow for keys that are not in memory. Not
  // for rows that Next has passed.
  Status Find(int table, const int64_t* keys, size_t n, uint32_t* rows, Executor& executor);
  // Reads rows on disk of keys that are not in memory. Calls visit(i, payload), on many threads,
  // for each key that has one (table/row_records.h).
  Status ReadRecords(int table, const int64_t* keys, size_t n, const RecordStore::Visit& visit);
  // Returns which keys were written or erased in a change generation (GroupWriter::MarkChanges) or
  // later. A key in both lists was erased and then written. After a kill the lists may have more
  // keys than necessary, never fewer. Reads as Next does, so it must not be called after Next.
  Result<Changes> ChangedSince(int table, uint32_t generation);
  // The two parts of ChangedSince, for callers that also need the rows. ErasedSince returns the
  // keys that were erased, each once; no value: changes are not known. NextChanged reads rows that
  // were written since, as Next does.
  Result<std::optional<std::vector<int64_t>>> ErasedSince(int table, uint32_t generation);
  Result<size_t> NextChanged(int table, uint32_t generation, size_t n, int64_t* keys,
                             char* const* planes);
  // Copies planes of rows by their row numbers; skips kAbsentRow. Only planes that Options names.
  Status Copy(int table, const uint32_t* rows, size_t n, char* const* planes, Executor& executor);
  // Returns OK as long as everything was read from one state.
  Status Check() const;
  // Returns how long the scan has waited for the writer, or restarted because of it, so far.
  uint64_t waited_ns() const { return waited_ns_; }

 private:
  struct Part {
    int table;
    std::shared_ptr<TableFiles> files;
    const PlaneList* list;
    uint64_t wanted;       // planes
    uint64_t next = 0;     // the row number at which Next continues
    uint64_t live = 0;     // number of rows that it has returned
    bool skipped = false;  // SkipTo was called
    std::unordered_map<uint32_t, const char*> images = {};  // by row
    std::unordered_map<int64_t, uint32_t> by_key = {};      // rows of images by key, if `keys`
    bool keys = false;
    // --- For tiered tables. ---
    std::unique_ptr<RecordScan> records = nullptr;
    std::vector<char> payloads = {};  // rows on disk that Next has read, but not returned
    std::vector<int64_t> payload_keys = {};
    size_t payload = 0;  // the next one to return
  };
  // A row that has an image, and its position among the rows that are read.
  struct Saved {
    uint32_t row;
    size_t at;
  };
  Scan(Group& group, std::vector<int> tables, const Options& options)
      : group_(group), tables_(std::move(tables)), options_(options) {}

  // The outcome of an attempt to begin.
  enum class Attempt {
    kBegun,
    kStateChanged,   // a mutation came between the parts of the attempt
    kTablesChanged,  // the files of a table are no longer those that this process has mapped
  };
  // Tries to begin. `map_again`: maps the tables first, even if they seem to be mapped.
  Result<Attempt> TryBegin(bool map_again, uint64_t deadline);
  // Reads the committed state. Maps the tables, and returns what is wrong with them.
  Status ReadState(State* state);
  // Returns whether this process has mapped the tables as of a state.
  static bool IsMapped(const Group& group, const std::vector<int>& tables, const State& state);
  // Takes a place and announces a scan of tables that are as large as in `state`. Returns false if
  // this process cannot.
  Result<bool> Announce(const State& state, uint64_t deadline);
  // Waits for the committed state to read. Returns false if a mutation is unfinished and there is
  // no writer.
  Result<bool> AwaitState(uint64_t deadline);
  // Returns whether the announced file fits the state, and all images belong to that state.
  bool Fits() const;
  // For a state with a sealed mutation: makes images of the rows that it has written. Returns false
  // if it was decided meanwhile.
  Result<bool> TakeSealed();
  Status TakeSealed(const Overlay& overlay, Part& part);
  // Maps the tables. Returns false if any is no longer as in the state.
  bool MapTables();
  bool announced() const { return announcement_ != nullptr; }
  ScanFile& file() const { return announcement_->file(); }

  const Part& PartOf(int table) const;
  Part& PartOf(int table);
  size_t NumberOf(const Part& part) const { return static_cast<size_t>(&part - parts_.data()); }
  // Reads the images that the writer has made since the last call.
  Status TakeImages();
  void TakeKeys(Part& part);
  // Begins a scan of a table's rows on disk. Returns false if the table has other rows on disk by
  // now.
  Result<bool> BeginRecords(Part& part);
  // Returns the offset of a plane in an image.
  static size_t OffsetOf(const Part& part, size_t plane) {
    return RowBytesOf(*part.list, part.wanted & ((uint64_t{1} << plane) - 1));
  }
  static int64_t KeyOf(const Part& part, const char* image);
  static bool IsLive(const Part& part, const char* image);
  // Returns InvalidArgument for planes that Options does not name.
  Status CheckWanted(const Part& part, char* const* planes) const;
  // Copies the next n rows by number, as Copy does.
  Status CopyNext(Part& part, size_t n, char* const* planes);
  // Replaces what was read of these rows by their images.
  Status CopyImages(Part& part, const std::vector<Saved>& saved, char* const* planes);
  // After all rows in memory were read: checks that as many had a key as the state says.
  Status CheckLive(const Part& part) const;
  // Finds row numbers of keys in the current index, which may be wrong for the state. Returns false
  // if a key may be present although it was not found.
  bool Probe(const Part& part, const int64_t* keys, size_t n, uint32_t* rows, Executor& executor);
  // Confirms rows at some positions: if rows[i] was not the row of keys[i], sets it to kAbsentRow
  // and adds the position to `absent`.
  Status Confirm(int table, const int64_t* keys, uint32_t* rows,
                 const std::vector<uint32_t>& positions, Executor& executor,
                 std::vector<uint32_t>* absent);
  // Read and copy with Group::Read.
  Status ReadInPlace(const std::function<Status(const ReadView&)>& read);
  Status CopyInPlace(int table, const uint32_t* rows, size_t n, char* const* planes);

  Group& group_;
  const std::vector<int> tables_;
  State state_;
  std::vector<Part> parts_;
  uint64_t waited_ns_ = 0;
  Options options_;
  std::unique_ptr<ScanAnnouncement> announcement_;  // null: the scan could not announce itself
  std::unique_ptr<MappedFile> images_;              // null until there are any
  uint64_t taken_ = 0;                              // bytes of records that were read
  std::string not_announced_;                       // why it could not announce itself
  uint64_t sealed_ = 0;  // the sequence word of a sealed mutation that follows the state; 0: none
  std::deque<std::vector<char>> sealed_images_;
};

// Reads for lookups: runs `read` on one committed state, as Group::Read() does. For very many keys,
// for which the writer would have to wait long, it runs `scan` instead, if a scan can begin. `keys`
// is the number of keys of the lookup. `beside_writer`: the caller does not know when a writer in
// another process writes. Ranks of a job do know, because they look up between its steps. `options`
// are those of the scan.
Status ReadOrScan(Group& group, const std::vector<int>& tables, size_t keys, bool beside_writer,
                  const Scan::Options& options, const std::function<Status(const ReadView&)>& read,
                  const std::function<Status(Scan&)>& scan);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_SCAN_H_
