// The ops of device_cache.cc.
#include "kernels/op_definition.h"

namespace tsps {

std::vector<OpDefinition> DeviceCacheOps() {
  return {
      {"TspsCacheCreate",
       true,
       ScalarOutputs,
       {},
       {"slots: int64", "policy: string", "table: string"},
       {"cache: int64"}},
      {"TspsCacheRemove", true, NoOutputs, {}, {"cache: int64"}, {}},
      {"TspsCacheFind",
       true,
       PackShapes,
       {},
       {"cache: int64", "keys: int64"},
       {"order: int32", "slots: int32", "absent: int64"}},
      {"TspsCachePlan",
       true,
       CachePlanShapes,
       {"P: int >= 1"},
       {"cache: int64", "path: string", "uuid: string", "keys: int64"},
       {"rows: P * float", "plan: int64", "held: int32", "slots: int32", "entering: int32",
        "victims: int32", "victim_keys: int64", "left: int32"}},
      {"TspsCacheStep",
       true,
       PackShapes,
       {"T: int >= 1", "P: int >= 0", "planes: list(int) >= 1"},
       {"path: string", "step: int64", "paths: T * string", "uuids: T * string", "keys: T * int64",
        "grads: T * float", "hyper: T * float", "caches: T * int64", "plans: T * int64",
        "not_finite: T * int64", "victim_keys: T * int64", "victims: P * float"},
       {"verdict: uint8"}},
      {"TspsCacheNewer", true, PackShapes, {}, {"cache: int64"}, {"slots: int32", "keys: int64"}},
      {"TspsCacheFlushed", true, NoOutputs, {}, {"cache: int64", "rows: int64"}, {}},
      {"TspsCacheMoved", true, NoOutputs, {}, {"cache: int64", "plan: int64"}, {}},
      {"TspsCacheDraws",
       true,
       PackShapes,
       {},
       {"path: string", "uuid: string", "keys: int64", "step: int64"},
       {"draws: int64"}},
      {"TspsCacheClear", true, NoOutputs, {}, {"cache: int64"}, {}},
      {"TspsCacheCounters", true, PackShapes, {}, {"cache: int64"}, {"counters: int64"}}};
}

}  // namespace tsps
