#include "kernels/step.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/gradients/key_count.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

// Values that begin a record of a statement. They differ from all codes of a Status.
constexpr uint8_t kDigestRecord = 0xff, kObjectionRecord = 0xfe;
static_assert(static_cast<uint8_t>(Code::kInternal) < kObjectionRecord, "codes are below");

}  // namespace

std::vector<uint8_t> EncodeVerdict(const Status& verdict) {
  std::string bytes(1, static_cast<char>(verdict.code()));
  if (!verdict.ok()) {
    bytes += verdict.message().c_str();  // a zero in the message would end it
    bytes += '\0';
  }
  return {bytes.begin(), bytes.end()};
}

Status DecodeVerdicts(const uint8_t* bytes, size_t n) {
  const uint8_t* const end = bytes + n;
  Status refused, objection;
  uint64_t digest = 0;
  bool has_digest = false, differ = false;
  for (const uint8_t* at = bytes; at != end;) {
    if (*at == static_cast<uint8_t>(Code::kOk)) {
      ++at;
      continue;
    }
    if (*at == kDigestRecord && end - at > static_cast<ptrdiff_t>(sizeof(digest))) {
      uint64_t next_digest;
      std::memcpy(&next_digest, at + 1, sizeof(next_digest));
      differ |= has_digest && next_digest != digest;
      digest = next_digest;
      has_digest = true;
      at += 1 + sizeof(digest);
      continue;
    }
    const bool objects = *at == kObjectionRecord;
    const uint8_t* const code = objects ? at + 1 : at;
    const uint8_t* const text_end = code == end ? end : std::find(code + 1, end, uint8_t{0});
    if (text_end == end || *code > static_cast<uint8_t>(Code::kInternal)) {
      return Error(Code::kInvalidArgument, "these ", n, " bytes are not verdicts on a step");
    }
    Status& first = objects ? objection : refused;
    if (first.ok()) first = Status(static_cast<Code>(*code), std::string(code + 1, text_end));
    at = text_end + 1;
  }
  if (!objection.ok()) return objection;
  if (differ) return RanksDiffer();
  return refused;
}

std::vector<uint8_t> EncodeStatement(uint64_t digest, const Status& objection) {
  std::vector<uint8_t> bytes(1 + sizeof(digest), kDigestRecord);
  std::memcpy(bytes.data() + 1, &digest, sizeof(digest));
  if (!objection.ok()) {
    const std::vector<uint8_t> verdict = EncodeVerdict(objection);
    bytes.push_back(kObjectionRecord);
    bytes.insert(bytes.end(), verdict.begin(), verdict.end());
  }
  return bytes;
}

Status StepUpdates::Read(const KernelContext& context, int paths, int hyper, int n_tables,
                         const OpenGroup& owner, TableCache* cache) {
  TSPS_ASSIGN_OR_RETURN(tables_, cache->Resolve(context, paths, paths + n_tables, n_tables));
  for (int t = 0; t < n_tables; ++t) {
    const TableHandle& table = (*tables_)[static_cast<size_t>(t)];
    if (table.owner.get() != &owner) {
      return Error(Code::kInvalidArgument, "table ", table.path(), " does not belong to group ",
                   owner.group().path());
    }
    TSPS_ASSIGN_OR_RETURN(Tensor values, context.Input(hyper + t, 1, "hyper"));
    TableUpdate update;
    update.table = table.table;
    update.hyper = values.data<float>();
    update.n_hyper = values.size();
    updates_.push_back(std::move(update));
    held_.push_back(std::move(values));
  }
  TSPS_ASSIGN_OR_RETURN(const Tensor optimizer, context.Input(hyper + n_tables, 1, "optimizer"));
  if (optimizer.size() != 2) {
    return Error(Code::kInvalidArgument,
                 "optimizer must have shape [2]. Received: ", ShapeString(optimizer.shape()));
  }
  optimizer_ = {static_cast<uint64_t>(optimizer.data<int64_t>()[0]),
                static_cast<uint64_t>(optimizer.data<int64_t>()[1])};
  return Status();
}

Status StepUpdates::CheckDim(size_t table, size_t dim) const {
  const TableHandle& handle = (*tables_)[table];
  if (static_cast<int64_t>(dim) == handle.config().dim) return Status();
  return Error(Code::kInvalidArgument, "grads of table ", handle.path(), " must have ",
               handle.config().dim, " columns. Received: ", dim);
}

Status StepUpdates::ReadAll(const KernelContext& context, int first, int n_tables, bool with_counts,
                            const OpenGroup& owner, TableCache* cache) {
  const int hyper = first + (with_counts ? 5 : 4) * n_tables;
  TSPS_RETURN_IF_ERROR(Read(context, first, hyper, n_tables, owner, cache));
  for (int t = 0; t < n_tables; ++t) {
    const auto table = static_cast<size_t>(t);
    TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(first + 2 * n_tables + t));
    TSPS_ASSIGN_OR_RETURN(Tensor grads, context.Input(first + 3 * n_tables + t, 2, "grads"));
    const TableHandle& handle = (*tables_)[table];
    if (grads.dim(0) != keys.dim(0) || grads.dim(1) != handle.config().dim) {
      return Error(Code::kInvalidArgument, "grads of table ", handle.path(), " must have shape ",
                   ShapeString({keys.dim(0), handle.config().dim}),
                   ". Received: ", ShapeString(grads.shape()));
    }
    updates_[table].keys = keys.data<int64_t>();
    updates_[table].n = keys.size();
    updates_[table].gradients = grads.data<float>();
    if (with_counts) {
      TSPS_ASSIGN_OR_RETURN(const Tensor counts,
                            context.Input(first + 4 * n_tables + t, 1, "counts"));
      if (counts.size() != 0 && counts.dim(0) != keys.dim(0)) {
        return Error(Code::kInvalidArgument, "counts of table ", handle.path(), " must have shape ",
                     ShapeString(keys.shape()), " or [0]. Received: ", ShapeString(counts.shape()));
      }
      if (counts.size() > 0) AddCounts(table, counts.data<int32_t>(), keys.size());
    }
    held_.push_back(std::move(keys));
    held_.push_back(std::move(grads));
  }
  return SetOccurrences();
}

void StepUpdates::AddCounts(size_t table, const int32_t* counts, size_t n) {
  if (n == 0 || OccurrencesOf(counts[0]) == 0) return;
  occurrences_.resize(updates_.size());
  std::vector<uint32_t>& occurrences = occurrences_[table];
  for (size_t i = 0; i < n; ++i) occurrences.push_back(OccurrencesOf(counts[i]));
}

Status StepUpdates::SetOccurrences() {
  for (size_t t = 0; t < occurrences_.size(); ++t) {
    const size_t n = occurrences_[t].size();
    if (n == 0) continue;
    if (n != updates_[t].n) {
      return Error(Code::kInternal, "table ", (*tables_)[t].path(), " has occurrences of ", n,
                   " of ", updates_[t].n, " keys");
    }
    updates_[t].occurrences = occurrences_[t].data();
  }
  return Status();
}

Status StepUpdates::TakeReduced(std::vector<ReducedGradients>* reduced) {
  if (reduced->size() != updates_.size()) {
    return Error(Code::kInvalidArgument, "the exchange has gradients of ", reduced->size(),
                 " tables. Expected: ", updates_.size());
  }
  reduced_ = std::move(*reduced);
  keys_.resize(reduced_.size());
  for (size_t t = 0; t < reduced_.size(); ++t) {
    TSPS_RETURN_IF_ERROR(CheckDim(t, reduced_[t].dim()));
    keys_[t].reserve(reduced_[t].n());
    for (const GradientSet& set : reduced_[t].sets()) {
      keys_[t].insert(keys_[t].end(), set.keys, set.keys + set.n);
      updates_[t].pieces.push_back({set.rows, set.n});
      AddCounts(t, set.counts, set.n);
    }
    updates_[t].keys = keys_[t].data();
    updates_[t].n = keys_[t].size();
  }
  return SetOccurrences();
}

Status StepUpdates::Prepare(GroupWriter& writer, int64_t step) {
  if (step < 1) return Error(Code::kInvalidArgument, "step must be >= 1. Received: ", step);
  executor_ = WriterExecutor();
  RowChanges changes;
  changes.step = static_cast<uint64_t>(step);
  changes.updates = updates_;
  changes.optimizer = optimizer_;
  changes.writes = writes_;
  return writer.Prepare(changes, *executor_);
}

Status MakeStep(const KernelContext& context, const ReportDone& report, int64_t step,
                OpenGroup& owner, NodeExchange* exchange,
                const std::function<Status(GroupWriter&)>& prepare) {
  const Status refused = NoThrow([&] {
    return owner.Write([&](GroupWriter& writer) -> Status {
      TSPS_RETURN_IF_ERROR(prepare(writer));
      const Status output = context.OutputVector(0, EncodeVerdict(Status()));
      if (!output.ok()) {
        writer.Abort();
        return output;
      }
      if (exchange != nullptr) exchange->verdicts().PostVerdict(step, Status());
      report();
      writer.Publish();
      return Status();
    });
  });
  if (refused.ok()) return Status();
  if (exchange != nullptr) exchange->verdicts().PostVerdict(step, refused);
  return context.OutputVector(0, EncodeVerdict(refused));
}

Status OutputLeadersVerdict(const KernelContext& context, NodeExchange& exchange,
                            const MergeCall& call) {
  Status verdict;
  TSPS_RETURN_IF_ERROR(exchange.verdicts().AwaitVerdict(call, &verdict));
  return context.OutputVector(0, EncodeVerdict(verdict));
}

}  // namespace tsps
