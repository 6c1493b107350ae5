// The definitions of the ops of pull.cc and pull_ahead.cc.
#include "kernels/op_definition.h"

namespace tsps {

std::vector<OpDefinition> PullOps() {
  const char* tables = "T: int >= 1";
  const std::vector<const char*> attributes = {tables,
                                               "operation: string",
                                               "nodes: int >= 1",
                                               "node: int >= 0",
                                               "wire: {'float32', 'bfloat16', 'float16'}",
                                               "batch: {'this', 'next'}"};
  return {{"TspsPullAsk",
           true,
           PackShapes,
           attributes,
           {"keys: T * int64", "paths: T * string", "uuids: T * string", "timeout_s: float"},
           {"buffer: uint8", "splits: int32"}},
          {"TspsPullServe",
           true,
           PackShapes,
           attributes,
           {"asked: uint8", "paths: T * string", "uuids: T * string"},
           {"buffer: uint8", "splits: int32"}},
          {"TspsPullTake",
           true,
           PullTakeShapes,
           attributes,
           {"served: uint8", "keys: T * int64", "paths: T * string", "uuids: T * string"},
           {"rows: T * float"}},
          {"TspsPullAnnounce",
           true,
           NoOutputs,
           {},
           {"path: string", "table: int64", "keys: int64", "dataset: int64", "index: int64",
            "batches: int64"},
           {}},
          {"TspsPullLooking", true, ScalarOutputs, {}, {"path: string"}, {"looking: int64"}},
          {"TspsPullCheck",
           true,
           PackShapes,
           {tables},
           {"keys: T * int64", "paths: T * string", "uuids: T * string"},
           {"verdict: uint8"}},
          {"TspsPullStepMade",
           true,
           ScalarOutputs,
           {tables},
           {"step: int64", "paths: T * string", "uuids: T * string"},
           {"made: int64"}},
          {"TspsPullCounters",
           true,
           ScalarOutputs,
           {},
           {"path: string"},
           {"announced: int64", "dropped: int64", "looked_up: int64", "ahead: int64",
            "fetched: int64"}}};
}

}  // namespace tsps
