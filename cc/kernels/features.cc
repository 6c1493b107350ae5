#include "kernels/features.h"

#include <limits>
#include <numeric>
#include <utility>

#include "core/gradients/dedupe.h"
#include "core/group/scan.h"

namespace tsps {

Status Features::Init(const Attributes& attributes, bool pooled) {
  TSPS_ASSIGN_OR_RETURN(n, attributes.Int("N"));
  TSPS_ASSIGN_OR_RETURN(tables, attributes.Int("T"));
  TSPS_ASSIGN_OR_RETURN(table_of, attributes.IntList("table_of"));
  if (table_of.size() != static_cast<size_t>(n)) {
    return Error(Code::kInvalidArgument, "table_of must have one table for each of ", n,
                 " features. Received: ", table_of.size());
  }
  features_of.resize(static_cast<size_t>(tables));
  for (int f = 0; f < n; ++f) {
    const int table = table_of[static_cast<size_t>(f)];
    if (table < 0 || table >= tables) {
      return Error(Code::kInvalidArgument, "table_of must be in [0, ", tables,
                   "). Received: ", table);
    }
    features_of[static_cast<size_t>(table)].push_back(f);
  }
  if (!pooled) return Status();
  TSPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, attributes.StringList("combiners"));
  if (names.size() != static_cast<size_t>(n)) {
    return Error(Code::kInvalidArgument, "combiners must have one item for each of ", n,
                 " features. Received: ", names.size());
  }
  for (const std::string& name : names) {
    TSPS_ASSIGN_OR_RETURN(const Combiner combiner, CombinerFromName(name));
    combiners.push_back(combiner);
  }
  return Status();
}

Result<int64_t> Features::CommonWidth(int table, const std::vector<Tensor>& grads) const {
  int64_t width = -1;
  for (size_t f = 0; f < grads.size(); ++f) {
    if (table_of[f] != table) continue;
    const int64_t last = grads[f].dim(grads[f].rank() - 1);
    if (width >= 0 && last != width) {
      return Error(Code::kInvalidArgument, "gradients of table ", table,
                   " must have one width. Received: ", width, " and ", last);
    }
    width = last;
  }
  return width < 0 ? 0 : width;
}

Status UniqueKeys::Init(const KernelContext& context, const Features& features,
                        const std::vector<TableHandle>& tables, int keys, int inverses,
                        Executor& executor, bool in_step, bool* refused) {
  *refused = false;
  if (!in_step) TSPS_RETURN_IF_ERROR(ReportObjection(tables.front()));
  const auto path = [&](size_t t) { return tables[t].path(); };
  TSPS_RETURN_IF_ERROR(Dedupe(context, features, keys, inverses, path, executor));
  for (size_t t = 0; t < tables.size(); ++t) {
    if (CheckKeys(tables[t].config(), keys_[t].data(), keys_[t].size()).ok()) continue;
    const Status error = CheckIds(features, tables, ids_);  // names the position in the ids
    *refused = in_step && tables[t].served == nullptr && tables[t].owner->Object(error);
    return *refused ? Status() : error;
  }
  return Status();
}

Status UniqueKeys::Dedupe(const KernelContext& context, const Features& features, int keys,
                          int inverses, const std::function<std::string(size_t table)>& name,
                          Executor& executor) {
  const auto tables = static_cast<size_t>(features.tables);
  std::vector<size_t> counts(tables);
  for (int f = 0; f < features.n; ++f) {
    TSPS_ASSIGN_OR_RETURN(Tensor ids, context.Input(f));
    counts[static_cast<size_t>(features.table_of[static_cast<size_t>(f)])] += ids.size();
    ids_.push_back(std::move(ids));
  }
  for (size_t t = 0; t < tables; ++t) {
    if (counts[t] > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return Error(Code::kInvalidArgument,
                   "a call can look up at most 2147483647 ids of a table. Received: ", counts[t],
                   " for ", name(t));
    }
  }
  std::vector<std::vector<IdSpan>> spans(tables);
  for (int f = 0; f < features.n; ++f) {
    TSPS_ASSIGN_OR_RETURN(Tensor inverse, context.Output<int32_t>(inverses + f, ids(f).shape()));
    spans[static_cast<size_t>(features.table_of[static_cast<size_t>(f)])].push_back(
        {ids(f).data<int64_t>(), ids(f).size(), inverse.data<int32_t>()});
    inverses_.push_back(std::move(inverse));
  }
  keys_.resize(tables);
  ForEachItem(counts, executor, [&](size_t t) { keys_[t] = tsps::Dedupe(spans[t]); });
  for (size_t t = 0; t < tables; ++t) {
    TSPS_RETURN_IF_ERROR(context.OutputVector(keys + static_cast<int>(t), keys_[t]));
  }
  size_t n_ids = 0, n_unique = 0;
  for (size_t t = 0; t < tables; ++t) {
    n_ids += counts[t];
    n_unique += keys_[t].size();
  }
  LookupCounters::OfProcess().Add(n_ids);
  LookupCounters::OfProcess().AddTrained(n_ids, n_unique);
  return Status();
}

std::vector<RowGather> UniqueKeys::Gathers(const std::vector<TableHandle>& tables) const {
  std::vector<RowGather> gathers;
  for (size_t t = 0; t < tables.size(); ++t) {
    gathers.emplace_back(tables[t].known, tables[t].table, keys_[t].data(), keys_[t].size(),
                         tables[t].served == nullptr && tables[t].group().row_numbers().enabled());
  }
  return gathers;
}

void UniqueKeys::Remember(const std::vector<TableHandle>& tables, std::vector<RowGather>& gathers) {
  for (size_t t = 0; t < tables.size(); ++t) {
    RowNumberCache::Found numbers = gathers[t].TakeFound();
    if (numbers.rows.empty()) continue;
    numbers.keys = std::move(keys_[t]);
    tables[t].group().row_numbers().Put(tables[t].table, std::move(numbers));
  }
}

Result<Tensor> OutputRows(const KernelContext& context, int feature, const Tensor& ids,
                          const TableHandle& table) {
  std::vector<int64_t> shape = ids.shape();
  shape.push_back(table.config().dim);
  return context.Output<float>(feature, shape);
}

Status ReportObjection(const TableHandle& table) {
  if (table.served != nullptr) return Status();
  const Status objection = table.owner->TakeObjection();
  if (objection.ok()) return objection;
  return Error(objection.code(),
               "an earlier lookup of a training step failed, so the step was not made: ",
               objection.message());
}

Status CheckIds(const Features& features, const std::vector<TableHandle>& tables,
                const std::vector<Tensor>& ids) {
  for (int f = 0; f < features.n; ++f) {
    const Tensor& feature = ids[static_cast<size_t>(f)];
    const TableHandle& table = features.In(tables, f);
    const int64_t* const id = feature.data<int64_t>();
    const Status bounds = CheckKeys(table.config(), id, feature.size());
    if (bounds.ok()) continue;
    const int64_t limit = table.config().key_limit;
    size_t rest = 0;
    while (id[rest] >= 0 && id[rest] < limit) ++rest;
    const int64_t refused = id[rest];
    std::vector<int64_t> position = feature.shape();
    for (size_t axis = position.size(); axis-- > 0;) {
      const size_t length = static_cast<size_t>(position[axis]);
      position[axis] = static_cast<int64_t>(rest % length);
      rest /= length;
    }
    return Error(bounds.code(), "table ", table.path(), ": ids", ShapeString(position), " = ",
                 refused, " is not in [0, ", limit, "). Feature ", f, " of the call, ids of shape ",
                 ShapeString(feature.shape()));
  }
  return Status();
}

Status CheckInverse(const Tensor& inverse, size_t n_keys, int feature) {
  const int32_t* const positions = inverse.data<int32_t>();
  for (size_t i = 0; i < inverse.size(); ++i) {
    if (positions[i] < 0 || static_cast<size_t>(positions[i]) >= n_keys) {
      return Error(Code::kInvalidArgument, "inverses of feature ", feature, " must be in [0, ",
                   n_keys, "). Received: ", positions[i], " at ", i);
    }
  }
  return Status();
}

Status CheckCarriers(const KernelContext& context, const std::vector<TableHandle>& tables,
                     int carriers) {
  for (size_t t = 0; t < tables.size(); ++t) {
    if (const Shard& shard = tables[t].config().shard; !shard.whole()) {
      return Error(Code::kFailedPrecondition, "table ", tables[t].path(),
                   " has only the rows of node ", shard.node, " of ", shard.nodes,
                   ". This lookup was traced for a SavedModel, so it cannot read the rows of other "
                   "nodes. Call the loaded SavedModel, or a function that was not traced for it");
    }
    TSPS_ASSIGN_OR_RETURN(const Tensor carrier, context.Input(carriers + static_cast<int>(t)));
    if (carrier.rank() != 2 || carrier.dim(1) != tables[t].config().dim) {
      return Error(Code::kInvalidArgument, "the carrier of table ", tables[t].path(),
                   " must have shape [0,", tables[t].config().dim,
                   "]. Received: ", ShapeString(carrier.shape()));
    }
  }
  return Status();
}

Result<Bags> Bags::Read(const KernelContext& context, const Features& features, int feature,
                        int splits, int weights, size_t n_items) {
  Bags bags;
  TSPS_ASSIGN_OR_RETURN(bags.splits, context.Input(splits, 1, "splits"));
  TSPS_ASSIGN_OR_RETURN(bags.weights, context.Input(weights, 1, "weights"));
  const int64_t* const offsets = bags.splits.data<int64_t>();
  TSPS_RETURN_IF_ERROR(ValidateSplits(offsets, bags.splits.size(), n_items));
  if (bags.weights.size() != 0 && bags.weights.size() != n_items) {
    return Error(Code::kInvalidArgument, "feature ", feature, " has ", n_items,
                 " ids; expected as many weights, or none. Received: ", bags.weights.size());
  }
  bags.span.inverse = nullptr;
  bags.span.splits = offsets;
  bags.span.n_bags = bags.splits.size() - 1;
  bags.span.weights = bags.weights.size() == 0 ? nullptr : bags.weights.data<float>();
  bags.span.combiner = features.combiners[static_cast<size_t>(feature)];
  return bags;
}

Status ReadRows(const std::vector<TableHandle>& tables, std::vector<RowGather>& gathers,
                Executor& executor, const std::function<void(size_t gather)>& read) {
  if (tables.front().served != nullptr) {
    for (size_t i = 0; i < gathers.size(); ++i) {
      const auto look_up = [&](const int64_t* keys, size_t n, float* rows) {
        return tables[i].served->Lookup(keys, n, rows, executor);
      };
      TSPS_RETURN_IF_ERROR(gathers[i].Find(look_up));
      read(i);
    }
    return Status();
  }
  std::vector<size_t> sizes;
  for (const RowGather& gather : gathers) sizes.push_back(gather.n());
  const auto attempt = [&](const ReadView& view) {
    ForEachItem(sizes, executor, [&](size_t i) {
      gathers[i].Find(view, executor);
      read(i);
    });
    return Status();
  };
  const auto scan_all = [&](Scan& scan) -> Status {
    for (size_t i = 0; i < gathers.size(); ++i) {
      TSPS_RETURN_IF_ERROR(gathers[i].Find(scan, executor));
      read(i);
    }
    return Status();
  };
  std::vector<int> numbers;
  for (const TableHandle& table : tables) numbers.push_back(table.table);
  TSPS_RETURN_IF_ERROR(ReadOrScan(tables.front().group(), numbers,
                                  std::accumulate(sizes.begin(), sizes.end(), size_t{0}),
                                  /*beside_writer=*/false, Scan::RowsAlone(), attempt, scan_all));
  for (const RowGather& gather : gathers) TSPS_RETURN_IF_ERROR(gather.status());
  return Status();
}

}  // namespace tsps
