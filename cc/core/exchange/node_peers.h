// NodePeers: the ranks of a node as one of them sees the others: what they have announced, how far
// they are, and whether they still live.
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

  // Opens the other ranks' files, once: all must have joined. Thread-safe.
  Status Open();

  const std::string& folder() const { return folder_; }
  RankFile& own() const { return *own_; }
  // By local rank, this one included. Null until Open(), but this one's.
  const std::vector<const RankFile*>& all() const { return files_; }
  const RankFile& leader() const { return *files_[0]; }

  // InvalidArgument unless what all ranks have announced is this rank's call. Returns the largest
  // number of rounds that one of them needs.
  Result<uint32_t> AgreeOnRounds() const;

  // Waits until `word`, of `peer`'s file, is `target` or more. Unavailable: the rank died, or the
  // call was cancelled. Aborted: it failed. DeadlineExceeded: for `call.timeout_s` it neither came
  // nor reported progress; the message says what is known of it.
  Status Await(const std::atomic<uint64_t>& word, uint64_t target, const RankFile& peer,
               const MergeCall& call);
  // Waits until all ranks have come to a phase.
  Status AwaitAll(uint64_t phase, const MergeCall& call);
  // This rank can not go on: the others' waits for it end with that.
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
