// NodePeers: the other ranks of a node, as one of them sees them: their calls, the phases that they
// have reached, and whether they live.
#ifndef TFSPS_CORE_EXCHANGE_NODE_PEERS_H_
#define TFSPS_CORE_EXCHANGE_NODE_PEERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/exchange/merge_call.h"
#include "core/exchange/rank_file.h"

namespace tsps {

class NodePeers {
 public:
  // Time spent waiting is added to `waited_ns`, which must outlive this.
  NodePeers(std::string folder, size_t local_rank, size_t local_size, std::unique_ptr<RankFile> own,
            std::atomic<uint64_t>& waited_ns);

  // Opens the other ranks' files, once. All ranks must have joined. Thread-safe.
  Status Open();

  const std::string& folder() const { return folder_; }
  RankFile& own() const { return *own_; }
  // Returns the files by local rank, this rank's included. The others are null until Open().
  const std::vector<const RankFile*>& all() const { return files_; }
  const RankFile& leader() const { return *files_[0]; }

  // Returns the largest number of rounds that a rank needs. InvalidArgument: a rank has announced
  // another call than this one.
  Result<uint32_t> AgreeOnRounds() const;

  // Waits until `word`, of `peer`'s file, is `target` or more. Unavailable: the rank died, or the
  // call was cancelled. Aborted: it failed. DeadlineExceeded: for `call.timeout_s` it neither came
  // nor reported progress; the message says what is known of it.
  Status Await(const std::atomic<uint64_t>& word, uint64_t target, const RankFile& peer,
               const MergeCall& call);
  // Waits until all ranks have reached a phase.
  Status AwaitAll(uint64_t phase, const MergeCall& call);
  // Reports that this rank cannot continue. The others' waits for it end with this failure.
  void TellFailure(const Status& failure);

 private:
  Status Late(const RankFile& peer, const MergeCall& call, uint64_t waited_s) const;

  const std::string folder_;
  const std::unique_ptr<RankFile> own_;
  std::vector<std::unique_ptr<RankFile>> peers_;  // by local rank; null for this one
  std::vector<const RankFile*> files_;
  std::mutex mutex_;
  bool open_ = false;
  std::atomic<uint64_t>& waited_ns_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_PEERS_H_
