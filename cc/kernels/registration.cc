// The definitions of all ops of the library, which docs/ops.md describes. Loading the library
// registers the ops and their kernels.
#include <tensorflow/c/ops.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/op_definition.h"
#include "kernels/shapes.h"
#include "kernels/tensors.h"

namespace tsps {
namespace {

std::vector<OpDefinition> Ops() {
  const char* features = "N: int >= 0";
  const char* tables = "T: int >= 1";
  const char* table_of = "table_of: list(int) >= 0";
  const char* in_step = "in_step: bool = false";
  const char* combiners = "combiners: list({'sum', 'mean', 'sqrtn'}) >= 0";
  return {
      {"TspsLookup",
       true,
       LookupShapes,
       {features, tables, table_of, in_step},
       {"ids: N * int64", "paths: T * string", "uuids: T * string", "carriers: T * float"},
       {"rows: N * float", "keys: T * int64", "inverses: N * int32"}},
      {"TspsSegmentSum",
       false,
       SegmentSumShapes,
       {features, tables, table_of},
       {"grads: N * float", "inverses: N * int32", "keys: T * int64"},
       {"sums: T * float"}},
      {"TspsPooledLookup",
       true,
       PooledLookupShapes,
       {features, tables, table_of, combiners, in_step},
       {"ids: N * int64", "splits: N * int64", "weights: N * float", "paths: T * string",
        "uuids: T * string", "carriers: T * float"},
       {"pooled: N * float", "keys: T * int64", "inverses: N * int32"}},
      {"TspsPooledSum",
       false,
       PooledSumShapes,
       {features, tables, table_of, combiners},
       {"grads: N * float", "splits: N * int64", "weights: N * float", "inverses: N * int32",
        "keys: T * int64"},
       {"sums: T * float"}},
      {"TspsPooledWeightGrad",
       true,
       PooledWeightGradShapes,
       {features, tables, table_of, combiners},
       {"grads: N * float", "splits: N * int64", "weights: N * float", "inverses: N * int32",
        "keys: T * int64", "paths: T * string", "uuids: T * string", "carriers: T * float"},
       {"weight_grads: N * float"}},
      {"TspsUnique",
       false,
       UniqueShapes,
       {features, tables, table_of},
       {"ids: N * int64"},
       {"inverses: N * int32", "keys: T * int64"}},
      {"TspsReadRows",
       true,
       ReadRowsShapes,
       {features, tables, table_of, in_step},
       {"ids: N * int64", "paths: T * string", "uuids: T * string", "carriers: T * float"},
       {"rows: N * float"}},
      {"TspsGatherRows",
       false,
       GatherRowsShapes,
       {features, tables, table_of, "uuids: list(string) = []"},
       {"inverses: N * int32", "rows: T * float", "keys: T * int64", "carriers: T * float"},
       {"gathered: N * float"}},
      {"TspsPoolRows",
       false,
       PoolRowsShapes,
       {features, tables, table_of, combiners, "uuids: list(string) = []"},
       {"inverses: N * int32", "splits: N * int64", "weights: N * float", "rows: T * float",
        "keys: T * int64", "carriers: T * float"},
       {"pooled: N * float"}},
      {"TspsPoolRowsWeightGrad",
       false,
       PooledWeightGradShapes,
       {features, tables, table_of, combiners},
       {"grads: N * float", "splits: N * int64", "weights: N * float", "inverses: N * int32",
        "keys: T * int64", "rows: T * float"},
       {"weight_grads: N * float"}},
      {"TspsCountOccurrences",
       true,
       SameShape,
       {features, "uuid: string"},
       {"keys: int64", "inverses: N * int32"},
       {"counted: int64"}},
      {"TspsTakeOccurrences",
       true,
       PackShapes,
       {"uuid: string"},
       {"keys: int64"},
       {"counts: int32"}},
      {"TspsMerge",
       false,
       MergeShapes,
       {tables, "reduction: {'frequency', 'average', 'sum', 'local'}"},
       {"keys: T * int64", "grads: T * float", "counts: T * int32", "world_size: int32"},
       {"merged_keys: T * int64", "merged_grads: T * float", "merged_counts: T * int32"}},
      {"TspsKeepIf",
       false,
       KeepIfShapes,
       {tables},
       {"weight: float", "keys: T * int64", "grads: T * float"},
       {"kept_keys: T * int64", "kept_grads: T * float"}},
      {"TspsWeightedConcat",
       false,
       WeightedConcatShapes,
       {"N: int >= 0"},
       {"tensors: N * float", "weight: float", "tail: float"},
       {"buffer: float"}},
      {"TspsMeanSplit",
       false,
       MeanSplitShapes,
       {"N: int >= 0"},
       {"like: N * float", "sums: float", "weights: float"},
       {"means: N * float"}},
      {"TspsPack",
       false,
       PackShapes,
       {tables, "wire: {'float32', 'bfloat16', 'float16'}"},
       {"keys: T * int64", "grads: T * float", "counts: T * int32"},
       {"buffer: uint8"}},
      {"TspsUnpackMerge",
       false,
       UnpackMergeShapes,
       {tables, "reduction: {'frequency', 'average', 'sum'}"},
       {"buffers: uint8", "world_size: int32"},
       {"merged_keys: T * int64", "merged_grads: T * float", "merged_counts: T * int32"}},
      {"TspsJoinExchange",
       true,
       NoOutputs,
       {},
       {"path: string", "folder: string", "local_rank: int64", "local_size: int64", "rank: int64",
        "mergers: int64", "window: int64"},
       {}},
      {"TspsLeaveExchange", true, NoOutputs, {}, {"path: string"}, {}},
      {"TspsRingInfo", true, RingInfoShapes, {}, {"path: string"}, {"counters: int64"}},
      {"TspsNodeMerge",
       true,
       MergeShapes,
       {tables, "reduction: {'frequency', 'average', 'sum'}", "operation: string"},
       {"keys: T * int64", "grads: T * float", "counts: T * int32", "world_size: int32",
        "path: string", "step: int64", "timeout_s: float"},
       {"merged_keys: T * int64", "merged_grads: T * float", "merged_counts: T * int32"}},
      {"TspsNodeApply",
       true,
       PackShapes,
       {tables, "reduction: {'frequency', 'average', 'sum'}", "operation: string"},
       {"keys: T * int64", "grads: T * float", "counts: T * int32", "world_size: int32",
        "path: string", "step: int64", "timeout_s: float", "paths: T * string", "uuids: T * string",
        "hyper: T * float", "optimizer: int64", "digest: int64"},
       {"verdict: uint8"}},
      {"TspsRingRounds",
       false,
       RingRoundsShapes,
       {tables, "dims: list(int)", "window: int", "local_size: int"},
       {"keys: T * int64"},
       {"rounds: int64"}},
      {"TspsRingTake",
       true,
       PackShapes,
       {tables, "reduction: {'frequency', 'average', 'sum'}", "operation: string",
        "wire: {'float32', 'bfloat16', 'float16'}", "owners: int >= 1"},
       {"keys: T * int64", "grads: T * float", "counts: T * int32", "world_size: int32",
        "path: string", "step: int64", "timeout_s: float", "round: int64", "rounds: int64"},
       {"buffer: uint8", "splits: int32"}},
      {"TspsRingPut",
       true,
       NoOutputs,
       {tables, "owners: int >= 1"},
       {"path: string", "buffers: uint8", "round: int64"},
       {}},
      {"TspsRingPrepare",
       true,
       PackShapes,
       {tables, "voters: int >= 1"},
       {"path: string", "step: int64", "paths: T * string", "uuids: T * string", "hyper: T * float",
        "optimizer: int64"},
       {"verdict: uint8"}},
      {"TspsRingCollect",
       true,
       UnpackMergeShapes,
       {tables, "dims: list(int)"},
       {"path: string"},
       {"merged_keys: T * int64", "merged_grads: T * float", "merged_counts: T * int32"}},
      {"TspsApply",
       true,
       ScalarOutputs,
       {tables},
       {"step: int64", "paths: T * string", "uuids: T * string", "keys: T * int64",
        "grads: T * float", "hyper: T * float", "optimizer: int64"},
       {"applied: int64"}},
      {"TspsMakeStep",
       true,
       PackShapes,
       {tables, "operation: string"},
       {"path: string", "step: int64", "timeout_s: float", "paths: T * string", "uuids: T * string",
        "keys: T * int64", "grads: T * float", "counts: T * int32", "hyper: T * float",
        "optimizer: int64", "digest: int64"},
       {"verdict: uint8"}},
      {"TspsPrepareStep",
       true,
       PackShapes,
       {tables, "voters: int >= 1"},
       {"path: string", "step: int64", "paths: T * string", "uuids: T * string", "keys: T * int64",
        "grads: T * float", "counts: T * int32", "hyper: T * float", "optimizer: int64"},
       {"verdict: uint8"}},
      {"TspsDecideStep",
       true,
       PackShapes,
       {},
       {"path: string", "verdicts: uint8"},
       {"verdict: uint8"}},
      {"TspsCheckStep",
       true,
       ScalarOutputs,
       {},
       {"step: int64", "verdict: uint8"},
       {"checked: int64"}},
      {"TspsFacts",
       false,
       FactsShapes,
       {"F: int >= 0", "n_values: int >= 0", "W: list(type) >= 0"},
       {"seed: int64", "numbers: int64", "reals: F * float", "values: W"},
       {"facts: int64", "digest: int64"}},
      {"TspsStatement",
       true,
       PackShapes,
       {},
       {"path: string", "digest: int64"},
       {"statement: uint8"}},
      {"TspsExplainDifference",
       true,
       PackShapes,
       {"names: list(string) >= 0", "shown: string", "remedies: list(string) >= 0",
        "remedy_of: list(int) >= 0"},
       {"verdict: uint8", "facts: int64"},
       {"explained: uint8"}},
      {"TspsAllowObjections", true, NoOutputs, {}, {"path: string", "allowed: int64"}, {}},
      {"TspsRaiseObjection", true, NoOutputs, {}, {"path: string"}, {}},
      // Not stateful, so that it runs when its input is ready, and does not wait for earlier ops of
      // the program. Its variable input, which it does not read, prevents constant folding.
      {"TspsMark",
       false,
       SameShape,
       {"dtype: type", "name_of: string", "phase: {'begin', 'end'}"},
       {"value: dtype", "variable: int64"},
       {"same: dtype"}},
      {"TspsRefuseCollectives", true, NoOutputs, {}, {"reason: string"}, {}},
      {"TspsTimeline",
       true,
       PackShapes,
       {"action: {'start', 'stop', 'in_flight'}"},
       {},
       {"spans: uint8"}},
      // Not stateful, for the same reason as TspsMark.
      {"TspsReady",
       false,
       SameShape,
       {"dtype: type", "profile: string", "gradient: int"},
       {"value: dtype", "variable: int64"},
       {"same: dtype"}},
      {"TspsReadyTimes", true, PackShapes, {"profile: string"}, {}, {"times: int64"}},
      {"TspsWaitStep",
       true,
       ScalarOutputs,
       {},
       {"path: string", "step: int64", "timeout_s: float"},
       {"reached: int64"}},
      {"TspsCreateGroup",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "life: int64", "index_seed: int64"},
       {}},
      {"TspsOpenWriter",
       true,
       ScalarOutputs,
       {},
       {"path: string", "outcome: string"},
       {"step: int64"}},
      {"TspsSetRun", true, NoOutputs, {}, {"path: string", "run_id: int64"}, {}},
      {"TspsCreateTable",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "dim: int64", "key_limit: int64", "max_rows: int64",
        "initializer: string", "initializer_args: float", "seed: int64", "salt: int64",
        "dtype: string", "rounding: string", "storage_folder: string", "storage_memory: int64",
        "node: int64", "nodes: int64", "records_use: bool"},
       {}},
      {"TspsSetEviction",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "order: string", "numbers: int64", "keep: int64"},
       {}},
      {"TspsSetAdmission",
       true,
       ScalarOutputs,
       {},
       {"path: string", "uuid: string", "numbers: int64"},
       {"forgotten: bool"}},
      {"TspsBindOptimizer",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "kind: string", "slot_init: float", "replace: bool"},
       {}},
      {"TspsRenewSlots", true, NoOutputs, {}, {"path: string", "uuid: string"}, {}},
      {"TspsSetOptimizer",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "optimizer: int64"},
       {}},
      {"TspsTakeIndexSeed",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "index_seed: int64"},
       {}},
      {"TspsAssign",
       true,
       NoOutputs,
       {"S: int >= 0"},
       {"path: string", "uuid: string", "keys: int64", "rows: float", "use: int64",
        "slots: S * float"},
       {}},
      {"TspsAssignCounts",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "keys: int64", "lines: int64"},
       {}},
      {"TspsErase",
       true,
       ScalarOutputs,
       {},
       {"path: string", "uuid: string", "keys: int64"},
       {"erased: int64"}},
      {"TspsAnnounce",
       true,
       NoOutputs,
       {},
       {"path: string", "uuid: string", "keys: int64", "dataset: int64", "index: int64",
        "batches: int64", "nodes: int64", "node: int64"},
       {}},
      {"TspsDiskCounters",
       true,
       ScalarOutputs,
       {},
       {},
       {"records: int64", "bytes: int64", "late: int64", "cached: int64", "waited_ns: int64",
        "errors: int64", "batches: int64", "passes: int64", "dropped: int64", "failed: int64",
        "staging_ns: int64"}},
      {"TspsSetStep", true, NoOutputs, {}, {"path: string", "step: int64"}, {}},
      {"TspsMarkChanges", true, ScalarOutputs, {}, {"path: string"}, {"generation: int64"}},
      {"TspsGroupInfo",
       true,
       GroupInfoShapes,
       {},
       {"path: string"},
       {"step: int64", "version: int64", "counters: int64"}},
      // Not stateful, so that it waits only for its argument, which every step writes.
      {"TspsNextStep", false, ScalarOutputs, {}, {"path: string", "known: int64"}, {"step: int64"}},
      {"TspsRemoveTable", true, NoOutputs, {}, {"path: string", "uuid: string"}, {}},
      {"TspsForgetTable", true, NoOutputs, {}, {"path: string"}, {}},
      {"TspsCloseGroup", true, NoOutputs, {}, {"path: string"}, {}},
      {"TspsSetThreads", true, NoOutputs, {}, {"threads: int64", "writer_threads: int64"}, {}},
      {"TspsHoldTerminate", true, NoOutputs, {}, {}, {}},
      {"TspsCount",
       true,
       NoOutputs,
       {},
       {"path: string", "rank: int64", "size: int64", "local_rank: int64"},
       {}},
      {"TspsCountSamples", true, NoOutputs, {}, {"path: string", "samples: int64"}, {}},
      {"TspsOutOfRoom", true, ScalarOutputs, {}, {}, {"out_of_room: int64"}},
  };
}

[[noreturn]] void Abort(const char* what, const TF_Status* status) {
  std::fprintf(stderr, "tf_sparse_ps: registering %s: %s\n", what, TF_Message(status));
  std::abort();
}

void RegisterOp(const OpDefinition& op) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op.name);
  for (const char* spec : op.attributes) TF_OpDefinitionBuilderAddAttr(builder, spec);
  for (const char* spec : op.inputs) TF_OpDefinitionBuilderAddInput(builder, spec);
  for (const char* spec : op.outputs) TF_OpDefinitionBuilderAddOutput(builder, spec);
  // TensorFlow (2.15 to 2.21) makes the op stateful also if the argument is false.
  if (op.stateful) TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  const StatusOwner status(TF_NewStatus());
  TF_RegisterOpDefinition(builder, status.get());  // takes the builder
  if (TF_GetCode(status.get()) != TF_OK) Abort(op.name, status.get());
}

bool RegisterAll() {
  for (const OpDefinition& op : Ops()) RegisterOp(op);
  for (const OpDefinition& op : PullOps()) RegisterOp(op);
  for (const OpDefinition& op : DeviceCacheOps()) RegisterOp(op);
  RegisterLookupKernels();
  RegisterCounterKernels();
  RegisterPooledKernels();
  RegisterRowsKernels();
  RegisterReduceKernels();
  RegisterOccurrenceKernels();
  RegisterDenseKernels();
  RegisterExchangeKernels();
  RegisterRingKernels();
  RegisterPullKernels();
  RegisterPullAheadKernels();
  RegisterWireKernels();
  RegisterApplyKernels();
  RegisterAgreementKernels();
  RegisterDeviceCacheKernels();
  RegisterCacheStagingKernels();
  RegisterCacheDevicesKernels();
  RegisterSlowLinkKernels();
  RegisterDeviceCacheStepKernels();
  RegisterCacheFlushKernels();
  RegisterTimelineKernels();
  RegisterReadyTimesKernels();
  RegisterWaitKernels();
  RegisterAdminKernels();
  return true;
}

// The library's only static initializer.
const bool registered = RegisterAll();

}  // namespace

void RegisterBuilder(const char* op, TF_KernelBuilder* builder) {
  const StatusOwner status(TF_NewStatus());
  TF_RegisterKernelBuilder(op, builder, status.get());  // takes the builder
  if (TF_GetCode(status.get()) != TF_OK) Abort(op, status.get());
}

}  // namespace tsps
