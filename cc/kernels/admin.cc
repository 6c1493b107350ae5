// Ops that create, change and describe groups and tables, outside of the training step.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "core/table/initializer.h"
#include "core/table/planes.h"
#include "core/table/row_optimizer.h"
#include "core/tier/disk_totals.h"
#include "kernels/async_kernel.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/stager.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

// Returns the table of inputs 0 and 1, `path` and `uuid`.
Result<TableHandle> TableInput(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::string uuid, context.String(1, "uuid"));
  return GroupRegistry::Get().OpenTable(path, uuid);
}

Status CreateGroup(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::string uuid, context.String(1, "uuid"));
  TSPS_ASSIGN_OR_RETURN(const int64_t life, context.Scalar<int64_t>(2, "life"));
  TSPS_ASSIGN_OR_RETURN(const int64_t index_seed, context.Scalar<int64_t>(3, "index_seed"));
  const GroupDraw draw = {static_cast<uint64_t>(life), static_cast<uint64_t>(index_seed)};
  return GroupRegistry::Get().Create(path, uuid, draw).status();
}

Status OpenWriter(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::string outcome, context.String(1, "outcome"));
  constexpr const char* kOutcomes[] = {"refuse", "undo", "publish"};  // the order of Undecided
  const auto* const name = std::find(std::begin(kOutcomes), std::end(kOutcomes), outcome);
  if (name == std::end(kOutcomes)) {
    return Error(Code::kInvalidArgument,
                 "outcome must be 'refuse', 'undo' or 'publish'. Received: '", outcome, "'");
  }
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  TSPS_RETURN_IF_ERROR(owner->BecomeWriter(static_cast<Undecided>(name - kOutcomes)));
  return context.OutputScalar(0, static_cast<int64_t>(owner->group().step()));
}

Status SetRun(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t run_id, context.Scalar<int64_t>(1, "run_id"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  return owner->Write([&](GroupWriter& writer) {
    writer.SetRun(static_cast<uint64_t>(run_id));
    return Status();
  });
}

Status CreateTable(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  const SplitPath split = SplitTablePath(path);
  TableConfig config;
  config.name = split.name;
  TSPS_ASSIGN_OR_RETURN(config.uuid, context.String(1, "uuid"));
  TSPS_ASSIGN_OR_RETURN(config.dim, context.Scalar<int64_t>(2, "dim"));
  TSPS_ASSIGN_OR_RETURN(config.key_limit, context.Scalar<int64_t>(3, "key_limit"));
  TSPS_ASSIGN_OR_RETURN(config.max_rows, context.Scalar<int64_t>(4, "max_rows"));
  TSPS_ASSIGN_OR_RETURN(const std::string kind, context.String(5, "initializer"));
  TSPS_ASSIGN_OR_RETURN(config.initializer.kind, InitializerKindFromName(kind));
  TSPS_ASSIGN_OR_RETURN(const Tensor args, context.Input(6, 1, "initializer_args"));
  if (args.size() != 2) {
    return Error(Code::kInvalidArgument,
                 "initializer_args must have shape [2]. Received: ", ShapeString(args.shape()));
  }
  config.initializer.a = args.data<float>()[0];
  config.initializer.b = args.data<float>()[1];
  TSPS_ASSIGN_OR_RETURN(const int64_t seed, context.Scalar<int64_t>(7, "seed"));
  TSPS_ASSIGN_OR_RETURN(const int64_t salt, context.Scalar<int64_t>(8, "salt"));
  config.initializer.seed = static_cast<uint64_t>(seed);
  config.initializer.salt = static_cast<uint64_t>(salt);
  TSPS_ASSIGN_OR_RETURN(const std::string dtype, context.String(9, "dtype"));
  TSPS_ASSIGN_OR_RETURN(config.row_type, PlaneTypeFromName(dtype));
  TSPS_ASSIGN_OR_RETURN(const std::string rounding, context.String(10, "rounding"));
  TSPS_ASSIGN_OR_RETURN(config.rounding, RoundingFromName(rounding));
  TSPS_ASSIGN_OR_RETURN(config.storage.folder, context.String(11, "storage_folder"));
  TSPS_ASSIGN_OR_RETURN(const int64_t memory, context.Scalar<int64_t>(12, "storage_memory"));
  config.storage.memory = static_cast<uint64_t>(memory);
  TSPS_ASSIGN_OR_RETURN(const int64_t node, context.Scalar<int64_t>(13, "node"));
  TSPS_ASSIGN_OR_RETURN(const int64_t nodes, context.Scalar<int64_t>(14, "nodes"));
  config.shard = {static_cast<uint32_t>(node), static_cast<uint32_t>(nodes)};
  TSPS_ASSIGN_OR_RETURN(const bool records_use, context.Scalar<bool>(15, "records_use"));
  if (records_use) config.metadata.push_back(UseAsMetadata());
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner,
                        GroupRegistry::Get().Open(split.parent));
  return owner->Write([&](GroupWriter& writer) { return writer.CreateTable(config).status(); });
}

// Inputs: path, uuid, order ("lru", "lfu"; "": no eviction), numbers (unused_steps, max_rows,
// half_life), keep.
Status SetEviction(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const std::string order, context.String(2, "order"));
  TSPS_ASSIGN_OR_RETURN(const Tensor numbers, context.Input(3, 1, "numbers"));
  TSPS_ASSIGN_OR_RETURN(const Tensor keep, context.Keys(4));
  std::shared_ptr<EvictionPolicy> policy;
  if (!order.empty()) {
    if (numbers.size() != 3) {
      return Error(Code::kInvalidArgument,
                   "numbers must have shape [3]. Received: ", ShapeString(numbers.shape()));
    }
    const int64_t* const values = numbers.data<int64_t>();
    if (values[0] < 0 || values[1] < 0 || values[2] < 1 || values[2] > UINT32_MAX) {
      return Error(Code::kInvalidArgument, "eviction of table ", table.path(), " by unused_steps ",
                   values[0], ", max_rows ", values[1], ", half_life ", values[2]);
    }
    policy = std::make_shared<EvictionPolicy>();
    TSPS_ASSIGN_OR_RETURN(policy->order, EvictionPolicy::OrderFromName(order));
    policy->unused_steps = static_cast<uint64_t>(values[0]);
    policy->max_rows = static_cast<uint64_t>(values[1]);
    policy->half_life = static_cast<uint32_t>(values[2]);
    policy->keep.insert(keep.data<int64_t>(), keep.data<int64_t>() + keep.size());
  }
  return table.owner->Write(
      [&](GroupWriter& writer) { return writer.SetEviction(table.table, policy); });
}

// Inputs: path, uuid, numbers (count, half_life, expected_keys; [0]: no admission). Outputs:
// forgotten.
Status SetAdmission(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const Tensor numbers, context.Input(2, 1, "numbers"));
  std::shared_ptr<AdmissionPolicy> policy;
  if (numbers.size() != 0) {
    if (numbers.size() != 3) {
      return Error(Code::kInvalidArgument,
                   "numbers must have shape [3] or [0]. Received: ", ShapeString(numbers.shape()));
    }
    const int64_t* const values = numbers.data<int64_t>();
    if (values[0] < 2 || values[0] > AdmissionSketch::kMostCount || values[1] < 1 ||
        values[1] > UINT32_MAX || values[2] < 1) {
      return Error(Code::kInvalidArgument, "admission of table ", table.path(), " by count ",
                   values[0], ", half_life ", values[1], ", expected_keys ", values[2]);
    }
    const auto count = static_cast<uint32_t>(values[0]);
    policy = std::make_shared<AdmissionPolicy>(
        AdmissionPolicy{count, static_cast<uint32_t>(values[1]),
                        AdmissionSketch::LinesFor(static_cast<uint64_t>(values[2]), count)});
  }
  bool forgotten = false;
  TSPS_RETURN_IF_ERROR(table.owner->Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(forgotten, writer.SetAdmission(table.table, policy));
    return Status();
  }));
  return context.OutputScalar(0, forgotten);
}

Status BindOptimizer(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  OptimizerConfig config;
  TSPS_ASSIGN_OR_RETURN(const std::string kind, context.String(2, "kind"));
  TSPS_ASSIGN_OR_RETURN(config.kind, OptimizerKindFromName(kind));
  TSPS_ASSIGN_OR_RETURN(const Tensor init, context.Input(3, 1, "slot_init"));
  const size_t slots = static_cast<size_t>(SlotCount(config.kind));
  if (init.size() != slots) {
    return Error(Code::kInvalidArgument, "slot_init of ", kind, " must have shape [", slots,
                 "]. Received: ", ShapeString(init.shape()));
  }
  std::copy_n(init.data<float>(), slots, config.slot_init);
  TSPS_ASSIGN_OR_RETURN(const bool replace, context.Scalar<bool>(4, "replace"));
  return table.owner->Write(
      [&](GroupWriter& writer) { return writer.BindOptimizer(table.table, config, replace); });
}

// Inputs: path, uuid.
Status RenewSlots(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  return table.owner->Write([&](GroupWriter& writer) { return writer.RenewSlots(table.table); });
}

// Inputs: path, uuid, optimizer: the id of the optimizer, and the number of its steps.
Status SetOptimizer(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const Tensor values, context.Input(2, 1, "optimizer"));
  if (values.size() != 2) {
    return Error(Code::kInvalidArgument,
                 "optimizer must have shape [2]. Received: ", ShapeString(values.shape()));
  }
  const OptimizerUse optimizer = {static_cast<uint64_t>(values.data<int64_t>()[0]),
                                  static_cast<uint64_t>(values.data<int64_t>()[1])};
  return table.owner->Write(
      [&](GroupWriter& writer) { return writer.SetOptimizer(table.table, optimizer); });
}

// Inputs: path, uuid, index_seed.
Status TakeIndexSeed(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const int64_t seed, context.Scalar<int64_t>(2, "index_seed"));
  return table.owner->Write([&](GroupWriter& writer) {
    return writer.TakeIndexSeed(table.table, static_cast<uint64_t>(seed)).status();
  });
}

// Inputs: path, uuid, keys, rows, use (int64[n], each the bytes of a RowUse; int64[0]: unknown),
// slots S.
class AssignKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_slots_, attributes.Int("S"));
    return Status();
  }

  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(2));
    std::vector<Tensor> values;  // the rows, then the slots
    std::vector<const float*> slots;
    for (int i = 0; i < 1 + n_slots_; ++i) {
      TSPS_ASSIGN_OR_RETURN(Tensor plane, context.Input(i == 0 ? 3 : 4 + i));
      if (i > 0) slots.push_back(plane.data<float>());
      values.push_back(std::move(plane));
    }
    TSPS_RETURN_IF_ERROR(CheckShape(table, values[0], "rows", {keys.dim(0), table.config().dim}));
    TSPS_ASSIGN_OR_RETURN(const Tensor use, context.Input(4, 1, "use"));
    if (use.size() > 0) TSPS_RETURN_IF_ERROR(CheckShape(table, use, "use", {keys.dim(0)}));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return table.owner->Write([&](GroupWriter& writer) -> Status {
      if (n_slots_ > 0) TSPS_RETURN_IF_ERROR(CheckSlots(table, values));
      return writer.Assign(table.table, keys.data<int64_t>(), values[0].data<float>(),
                           slots.empty() ? nullptr : slots.data(), keys.size(), *executor,
                           use.size() > 0 ? use.data<int64_t>() : nullptr);
    });
  }

 private:
  static Status CheckShape(const TableHandle& table, const Tensor& values, const char* name,
                           const std::vector<int64_t>& shape) {
    if (values.shape() == shape) return Status();
    return Error(Code::kInvalidArgument, name, " for table ", table.path(), " must have shape ",
                 ShapeString(shape), ". Received: ", ShapeString(values.shape()));
  }

  // Called under the writer's lock, so that no other optimizer is bound meanwhile.
  Status CheckSlots(const TableHandle& table, const std::vector<Tensor>& values) const {
    OptimizerKind kind = OptimizerKind::kNone;
    TSPS_RETURN_IF_ERROR(table.group().Read([&](const ReadView& view) {
      kind = view.Stats(table.table).optimizer.kind;
      return Status();
    }));
    if (SlotCount(kind) != n_slots_) {
      return Error(Code::kFailedPrecondition, "table ", table.path(), " has ", SlotCount(kind),
                   " slots (optimizer ", OptimizerKindName(kind), "). Received: ", n_slots_);
    }
    for (int k = 0; k < n_slots_; ++k) {
      const size_t width = SlotWidth(kind, k, static_cast<size_t>(table.config().dim));
      TSPS_RETURN_IF_ERROR(CheckShape(table, values[static_cast<size_t>(1 + k)], "slots",
                                      {values[0].dim(0), static_cast<int64_t>(width)}));
    }
    return Status();
  }

  int n_slots_ = 0;
};

// Inputs: path and uuid of a table with a sketch, keys, lines (int64[n, 8], each row the bytes of a
// SketchLine).
Status AssignCounts(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(2));
  TSPS_ASSIGN_OR_RETURN(const Tensor lines, context.Input(3, 2, "lines"));
  const auto n_words = static_cast<int64_t>(sizeof(SketchLine) / sizeof(int64_t));
  std::string plane;
  TSPS_RETURN_IF_ERROR(table.group().Read([&](const ReadView& view) {
    const PlaneList* const list = view.Planes(table.table);
    if (list != nullptr) plane = list->planes.back().name;
    return Status();
  }));
  if (lines.dim(0) != keys.dim(0) || lines.dim(1) != n_words) {
    return Error(Code::kInvalidArgument, "lines for table ", table.path(), " must have shape ",
                 ShapeString({keys.dim(0), n_words}), ". Received: ", ShapeString(lines.shape()));
  }
  const std::vector<PlaneValues> planes = {
      {PlaneRole::kMetadata, plane, sizeof(SketchLine), lines.data<int64_t>()}};
  const std::shared_ptr<Executor> executor = SharedExecutor();
  return table.owner->Write([&](GroupWriter& writer) {
    return writer.Assign(table.table, keys.data<int64_t>(), planes, keys.size(), *executor);
  });
}

Status Erase(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
  TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(2));
  size_t erased = 0;
  TSPS_RETURN_IF_ERROR(table.owner->Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(erased, writer.Erase(table.table, keys.data<int64_t>(), keys.size()));
    return Status();
  }));
  return context.OutputScalar(0, static_cast<int64_t>(erased));
}

Status SetStep(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(1, "step"));
  if (step < 0) return Error(Code::kInvalidArgument, "step must be >= 0. Received: ", step);
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  return owner->Write(
      [&](GroupWriter& writer) { return writer.SetStep(static_cast<uint64_t>(step)); });
}

Status MarkChanges(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  uint32_t generation = 0;
  TSPS_RETURN_IF_ERROR(owner->Write([&](GroupWriter& writer) -> Status {
    TSPS_ASSIGN_OR_RETURN(generation, writer.MarkChanges());
    return Status();
  }));
  return context.OutputScalar(0, static_cast<int64_t>(generation));
}

Status NumberNextStep(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t known, context.Scalar<int64_t>(1, "known"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  return context.OutputScalar(0, std::max(known, static_cast<int64_t>(owner->group().step())) + 1);
}

Status DescribeGroup(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  const Group& group = owner->group();
  const GroupCounters& counters = group.counters();
  TSPS_RETURN_IF_ERROR(context.OutputScalar(0, static_cast<int64_t>(group.step())));
  TSPS_RETURN_IF_ERROR(context.OutputScalar(1, static_cast<int64_t>(group.version())));
  const auto value = [](const std::atomic<uint64_t>& counter) {
    return static_cast<int64_t>(counter.load(std::memory_order_relaxed));
  };
  return context.OutputVector<int64_t>(
      2, {value(counters.read_retries), value(counters.read_blocked_ns_max),
          value(counters.steps_applied), value(counters.rows_written),
          value(counters.growth_splits), value(counters.growth_ns_max),
          value(counters.publish_ns_max), value(counters.growth_blocked_ns_max)});
}

Status RemoveTable(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::string uuid, context.String(1, "uuid"));
  return GroupRegistry::Get().RemoveTable(path, uuid);
}

Status ForgetTable(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  GroupRegistry::Get().Forget(path);
  return Status();
}

Status CloseGroup(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  GroupRegistry::Get().Close(path);
  return Status();
}

Status SetPoolThreads(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const int64_t threads, context.Scalar<int64_t>(0, "threads"));
  TSPS_ASSIGN_OR_RETURN(const int64_t writer, context.Scalar<int64_t>(1, "writer_threads"));
  if (threads < 0 || threads > 1024 || writer < 0 || writer > 1024) {
    return Error(Code::kInvalidArgument,
                 "threads and writer_threads must be in [0, 1024]. Received: threads=", threads,
                 ", writer_threads=", writer);
  }
  SetThreads(static_cast<int>(threads), static_cast<int>(writer));
  return Status();
}

// Announces the keys of a batch that a dataset has reached. The announcement waits while a step is
// being written, so it must not hold a thread that the step needs.
class AnnounceKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, uuid, keys, dataset, index, batches, nodes, node.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [context] { return Announce(context); });
  }

 private:
  static Status Announce(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const TableHandle table, TableInput(context));
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Input(2, 1, "keys"));
    Stager::Batch batch;
    TSPS_ASSIGN_OR_RETURN(batch.dataset, context.Scalar<int64_t>(3, "dataset"));
    TSPS_ASSIGN_OR_RETURN(batch.index, context.Scalar<int64_t>(4, "index"));
    TSPS_ASSIGN_OR_RETURN(batch.pass, context.Scalar<int64_t>(5, "batches"));
    TSPS_ASSIGN_OR_RETURN(const int64_t nodes, context.Scalar<int64_t>(6, "nodes"));
    TSPS_ASSIGN_OR_RETURN(const int64_t node, context.Scalar<int64_t>(7, "node"));
    batch.table = table;
    batch.nodes = static_cast<uint32_t>(nodes);
    batch.node = static_cast<uint32_t>(node);
    return Stager::Get().Announce(batch, keys.data<int64_t>(), static_cast<size_t>(keys.size()));
  }
};

// No inputs.
Status DiskCounters(const KernelContext& context) {
  const Stager::Counters counters = Stager::Get().counters();
  const DiskTotals& totals = DiskTotals::OfProcess();
  int output = 0;
  for (const uint64_t count :
       {totals.records.load(), totals.bytes.load(), totals.late.load(), totals.cached.load(),
        totals.waited_ns.load(), totals.errors.load(), counters.batches, counters.passes,
        counters.dropped, counters.failed, counters.nanoseconds}) {
    TSPS_RETURN_IF_ERROR(context.OutputScalar(output++, static_cast<int64_t>(count)));
  }
  return Status();
}

// No inputs.
Status HoldProcessEnd(const KernelContext&) {
  HoldTerminate();
  return Status();
}

// No inputs. Outputs: out_of_room.
Status ReportOutOfRoom(const KernelContext& context) {
  return context.OutputScalar(0, OutOfRoom() ? 1 : 0);
}

}  // namespace

void RegisterAdminKernels() {
  RegisterKernel<FunctionKernel<CreateGroup>>("TspsCreateGroup");
  RegisterKernel<FunctionKernel<OpenWriter>>("TspsOpenWriter");
  RegisterKernel<FunctionKernel<SetRun>>("TspsSetRun");
  RegisterKernel<FunctionKernel<CreateTable>>("TspsCreateTable");
  RegisterKernel<FunctionKernel<SetEviction>>("TspsSetEviction");
  RegisterKernel<FunctionKernel<SetAdmission>>("TspsSetAdmission");
  RegisterKernel<FunctionKernel<BindOptimizer>>("TspsBindOptimizer");
  RegisterKernel<FunctionKernel<RenewSlots>>("TspsRenewSlots");
  RegisterKernel<FunctionKernel<SetOptimizer>>("TspsSetOptimizer");
  RegisterKernel<FunctionKernel<TakeIndexSeed>>("TspsTakeIndexSeed");
  RegisterKernel<AssignKernel>("TspsAssign");
  RegisterKernel<FunctionKernel<AssignCounts>>("TspsAssignCounts");
  RegisterKernel<FunctionKernel<Erase>>("TspsErase");
  RegisterKernel<FunctionKernel<SetStep>>("TspsSetStep");
  RegisterKernel<FunctionKernel<MarkChanges>>("TspsMarkChanges");
  RegisterAsyncKernel<AnnounceKernel>("TspsAnnounce");
  RegisterKernel<FunctionKernel<DiskCounters>>("TspsDiskCounters");
  RegisterKernel<FunctionKernel<DescribeGroup>>("TspsGroupInfo");
  RegisterKernel<FunctionKernel<NumberNextStep>>("TspsNextStep");
  RegisterKernel<FunctionKernel<RemoveTable>>("TspsRemoveTable");
  RegisterKernel<FunctionKernel<ForgetTable>>("TspsForgetTable");
  RegisterKernel<FunctionKernel<CloseGroup>>("TspsCloseGroup");
  RegisterKernel<FunctionKernel<SetPoolThreads>>("TspsSetThreads");
  RegisterKernel<FunctionKernel<HoldProcessEnd>>("TspsHoldTerminate");
  RegisterKernel<FunctionKernel<ReportOutOfRoom>>("TspsOutOfRoom");
}

}  // namespace tsps
