#include "core/exchange/node_verdicts.h"

#include <cstring>
#include <string>

namespace tsps {

Status RanksDiffer() {
  return Error(Code::kFailedPrecondition,
               "the ranks of this job differ in something that must be equal on all of them");
}

namespace {

// Writes a status to a statement, as its objection, or to a verdict.
template <typename Record>
void SetStatus(const Status& status, Record* to) {
  to->code = static_cast<uint32_t>(status.code());
  const std::string text = status.message().substr(0, sizeof(to->text) - 1);
  std::memcpy(to->text, text.c_str(), text.size() + 1);
}

}  // namespace

Status OfRank(int64_t rank, const Status& objection) {
  return Error(objection.code(), "rank ", rank, ": ", objection.message());
}

NodeVerdicts::NodeVerdicts(NodePeers& peers) : peers_(peers) {}

void NodeVerdicts::PostStatement(int64_t step, uint64_t digest, const Status& objection) {
  ExchangeStatement& posted = peers_.own().statement();
  posted.step = step;
  posted.digest = digest;
  SetStatus(objection, &posted);
  // The leader has read the last statement, because this rank has its verdict on that step.
  Advance(posted.count, statements_.fetch_add(1) + 1);
}

Status NodeVerdicts::AwaitStatements(const MergeCall& call, Status* agreed) {
  TSPS_RETURN_IF_ERROR(peers_.Open());
  const ExchangeStatement& mine = peers_.own().statement();
  const uint64_t count = mine.count.load(std::memory_order_relaxed);
  bool differ = false;
  *agreed = Status();
  for (const RankFile* file : peers_.all()) {
    const ExchangeStatement& theirs = file->statement();
    TSPS_RETURN_IF_ERROR(peers_.Await(theirs.count, count, *file, call));
    const auto code = static_cast<Code>(theirs.code);
    if (code != Code::kOk && agreed->ok()) {
      *agreed = OfRank(static_cast<int64_t>(file->live().rank.load()), Status(code, theirs.text));
    }
    differ |= theirs.digest != mine.digest || theirs.step != mine.step;
  }
  if (agreed->ok() && differ) *agreed = RanksDiffer();
  return Status();
}

void NodeVerdicts::PostVerdict(int64_t step, const Status& verdict) {
  ExchangeVerdict& posted = peers_.own().verdict();
  posted.step = step;
  SetStatus(verdict, &posted);
  // The others have read the last verdict, because they have taken part in this step.
  Advance(posted.count, verdicts_.fetch_add(1) + 1);
}

Status NodeVerdicts::AwaitVerdict(const MergeCall& call, Status* verdict) {
  TSPS_RETURN_IF_ERROR(peers_.Open());
  const RankFile& leader = peers_.leader();
  const ExchangeVerdict& posted = leader.verdict();
  TSPS_RETURN_IF_ERROR(peers_.Await(posted.count, verdicts_.fetch_add(1) + 1, leader, call));
  if (posted.step != call.step) {
    return Error(Code::kAborted, "rank ", leader.live().rank.load(), " (pid ",
                 leader.live().pid.load(), ") decided on step ", posted.step, " when rank ",
                 peers_.own().live().rank.load(), " had made step ", call.step,
                 ": all ranks must make the same steps");
  }
  *verdict = Status(static_cast<Code>(posted.code), posted.text);
  return Status();
}

}  // namespace tsps
