// AdmissionPolicy: when a key of a table gets a row.
//
// A key without a row gets one in the step in which it has occurred `count` times in training, and
// that step trains it. Until then it reads its initial value, and its gradients are dropped. Counts
// are in a sketch (table/admission_sketch.h), whose lines are rows of another table of the group,
// made with SketchConfig. A step writes them in its own commit. What a step decides follows from
// its keys, their counts and the sketch, so all nodes decide alike, and so does a job that
// continues from a checkpoint.
//
// Rows that are set by an assign are not counted.
#ifndef TFSPS_CORE_GROUP_ADMISSION_POLICY_H_
#define TFSPS_CORE_GROUP_ADMISSION_POLICY_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/admission_sketch.h"
#include "core/table/table_config.h"

namespace tsps {

struct AdmissionPolicy {
  uint32_t count = 2;          // 2 to AdmissionSketch::kMostCount
  uint32_t half_life = 10000;  // of counts without a row, in steps
};

// Returns the name of the plane with the lines of a sketch, for tables that admit keys at `count`.
inline const char* SketchPlane(uint32_t count) {
  return AdmissionSketch::IsWide(count) ? "counts_of_8_bits" : "counts_of_4_bits";
}

// Returns the configuration of the table of a sketch.
inline TableConfig SketchConfig(const std::string& name, const std::string& uuid, uint64_t lines,
                                uint32_t count) {
  TableConfig config;
  config.name = name;
  config.uuid = uuid;
  config.dim = 1;
  config.key_limit = static_cast<int64_t>(lines);
  config.metadata = {
      {SketchPlane(count), PlaneType::kUint32, sizeof(SketchLine) / sizeof(uint32_t), 0}};
  return config;
}

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ADMISSION_POLICY_H_
