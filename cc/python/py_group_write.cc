// The methods of PyGroup that write.
#include "core/gradients/merge.h"
#include "python/py_group.h"

namespace tsps {

namespace {

// An update as plain pointers, which can be used without the GIL.
struct UpdateView {
  int table;
  std::shared_ptr<const TableConfig> config;
  const int64_t* keys;
  const float* gradients;
  const int32_t* counts;
  size_t n;
  const std::vector<float>* hyper;
};

// The buffers of a merged update.
struct MergedUpdate {
  MergedGradients merged;
  std::vector<float> gradients;
  std::vector<uint32_t> occurrences;  // of each key
};

// Merges the gradients of equal keys. `keys` and `gradients` of `update` point into `merged` then.
Status Merge(const UpdateView& view, Executor& executor, MergedUpdate* merged,
             TableUpdate* update) {
  // Without counts, the rows are from one rank: the gradients of a repeated key are added, not
  // averaged.
  const Reduction reduction = view.counts == nullptr ? Reduction::kLocal : Reduction::kFrequency;
  // Checked before the merge, after which the position of a NaN among the caller's rows is lost.
  const auto dim = static_cast<size_t>(view.config->dim);
  const int64_t bad = FirstNonFiniteRow(view.gradients, view.n, dim, executor);
  if (bad >= 0) {
    return Error(
        Code::kInvalidArgument, "gradient row ", bad, ", of key ", view.keys[bad],
        ", is not finite. No part of the step was applied. Check the loss and the learning "
        "rate");
  }
  const std::vector<GradientSet> sets = {{view.keys, view.counts, view.gradients, view.n}};
  TSPS_RETURN_IF_ERROR(MergeKeys(sets, reduction, &merged->merged));
  merged->gradients.resize(merged->merged.keys.size() * dim);
  TSPS_RETURN_IF_ERROR(
      MergeRows(sets, dim, merged->merged, reduction, 1, merged->gradients.data(), executor));
  update->table = view.table;
  update->keys = merged->merged.keys.data();
  update->gradients = merged->gradients.data();
  update->n = merged->merged.keys.size();
  update->hyper = view.hyper->data();
  update->n_hyper = view.hyper->size();
  merged->occurrences.resize(update->n);
  for (const int32_t key : merged->merged.inverse) ++merged->occurrences[static_cast<size_t>(key)];
  update->occurrences = merged->occurrences.data();
  return Status();
}

}  // namespace

int PyGroup::CreateTable(const std::string& name, const std::string& uuid, int64_t dim,
                         int64_t key_limit, int64_t max_rows, const py::dict& initializer,
                         const py::list& metadata, const std::string& dtype,
                         const std::string& rounding, const std::string& storage_folder,
                         uint64_t storage_memory, uint64_t storage_file_bytes, uint32_t node,
                         uint32_t nodes) {
  const TableConfig config{name,
                           uuid,
                           dim,
                           key_limit,
                           max_rows,
                           InitializerFromPython(initializer),
                           MetadataFromPython(metadata),
                           ValueOrThrow(PlaneTypeFromName(dtype)),
                           ValueOrThrow(RoundingFromName(rounding)),
                           {storage_folder, storage_memory, storage_file_bytes},
                           {node, nodes}};
  int table = 0;
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(table, writer.CreateTable(config));
    return Status();
  }));
  return table;
}

void PyGroup::RemoveTable(int table) {
  ThrowIfError(Write([&](GroupWriter& writer) { return writer.RemoveTable(table); }));
}

bool PyGroup::SetAdmission(int table, uint32_t count, uint32_t half_life, uint64_t expected_keys) {
  const AdmissionPolicy policy = {count, half_life,
                                  AdmissionSketch::LinesFor(expected_keys, count)};
  bool forgotten = false;
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(forgotten,
                          writer.SetAdmission(table, std::make_shared<AdmissionPolicy>(policy)));
    return Status();
  }));
  return forgotten;
}

void PyGroup::SetEviction(int table, const std::string& order, uint64_t unused_steps,
                          uint64_t max_rows, uint32_t half_life, const KeyArray& keep) {
  const auto policy = std::make_shared<EvictionPolicy>();
  policy->order = ValueOrThrow(EvictionPolicy::OrderFromName(order));
  policy->unused_steps = unused_steps;
  policy->max_rows = max_rows;
  policy->half_life = half_life;
  policy->keep.insert(keep.data(), keep.data() + KeyCount(keep));
  ThrowIfError(Write([&](GroupWriter& writer) { return writer.SetEviction(table, policy); }));
}

void PyGroup::BindOptimizer(int table, const std::string& kind, const std::vector<float>& slot_init,
                            bool replace) {
  const OptimizerConfig config = OptimizerFromPython(kind, slot_init);
  ThrowIfError(
      Write([&](GroupWriter& writer) { return writer.BindOptimizer(table, config, replace); }));
}

void PyGroup::ApplyStep(uint64_t step, const std::vector<PyUpdate>& updates) {
  std::vector<UpdateView> views;
  for (const auto& [table, keys, gradients, counts, hyper] : updates) {
    auto config = Config(table);
    const size_t n = KeyCount(keys);
    CheckRows(gradients, n, config->dim, "gradients");
    if (counts.has_value() && (counts->ndim() != 1 || static_cast<size_t>(counts->shape(0)) != n)) {
      Throw(Error(Code::kInvalidArgument, "counts must have the shape [", n,
                  "]. Received: ", counts->ndim(), " dimensions, ", counts->size(), " elements"));
    }
    views.push_back({table, std::move(config), keys.data(), gradients.data(),
                     counts.has_value() ? counts->data() : nullptr, n, &hyper});
  }
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    std::vector<MergedUpdate> merged(views.size());
    std::vector<TableUpdate> parts(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
      TSPS_RETURN_IF_ERROR(CheckKeys(*views[i].config, views[i].keys, views[i].n));
      TSPS_RETURN_IF_ERROR(Merge(views[i], *executor_, &merged[i], &parts[i]));
    }
    return writer.ApplyStep(step, parts, *executor_);
  }));
}

void PyGroup::Assign(int table, const KeyArray& keys, const FloatArray& rows,
                     const std::vector<FloatArray>& slots, const MetadataArrays& metadata) {
  const auto config = Config(table);
  const size_t n = KeyCount(keys);
  const auto dim = static_cast<size_t>(config->dim);
  CheckRows(rows, n, config->dim, "rows");
  // The planes may change before the write; the writer compares them again.
  const StoredRows stored = ValueOrThrow(StoredRows::Of(*config, keys.data(), rows.data(), n));
  std::vector<PlaneValues> planes = {
      {PlaneRole::kEmbedding, "embedding", dim * ElementBytes(config->row_type), stored.data()}};
  if (!slots.empty()) {
    const OptimizerKind kind = StatsOf(table).optimizer.kind;
    if (static_cast<size_t>(SlotCount(kind)) != slots.size()) {
      Throw(Error(Code::kInvalidArgument, "table ", config->name, " of ", group_->path(), " has ",
                  SlotCount(kind), " slots (optimizer ", OptimizerKindName(kind),
                  "). Received: ", slots.size()));
    }
    for (int k = 0; k < SlotCount(kind); ++k) {
      const FloatArray& values = slots[static_cast<size_t>(k)];
      const size_t width = SlotWidth(kind, k, dim);
      CheckRows(values, n, static_cast<int64_t>(width), SlotName(kind, k));
      planes.push_back({PlaneRole::kSlot, SlotName(kind, k), width * sizeof(float), values.data()});
    }
  }
  if (!metadata.empty()) {
    CheckMetadata(metadata, StatsOf(table).metadata, n,
                  "table " + config->name + " of " + group_->path());
    for (const auto& [name, values] : metadata) {
      const auto width = static_cast<size_t>(values.shape(1) * values.itemsize());
      planes.push_back({PlaneRole::kMetadata, name, width, values.data()});
    }
  }
  const int64_t* key_data = keys.data();
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    TSPS_RETURN_IF_ERROR(CheckKeys(*config, key_data, n));
    return writer.Assign(table, key_data, planes, n, *executor_);
  }));
}

size_t PyGroup::Erase(int table, const KeyArray& keys) {
  const size_t n = KeyCount(keys);
  const int64_t* key_data = keys.data();
  size_t erased = 0;
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(erased, writer.Erase(table, key_data, n));
    return Status();
  }));
  return erased;
}

uint32_t PyGroup::MarkChanges() {
  uint32_t generation = 0;
  ThrowIfError(Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(generation, writer.MarkChanges());
    return Status();
  }));
  return generation;
}

}  // namespace tsps
