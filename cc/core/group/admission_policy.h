// AdmissionPolicy: when a key of a table gets a row.
//
// A key without a row gets one in the step in which it has occurred `count` times in training, and
// that step trains it. Until then it reads its initial value, and its gradients are dropped. Counts
// are in a sketch (table/admission_sketch.h), whose lines are rows of another table of the group,
// named SketchName, which the policy makes. A step writes them in its own commit. What a step
// decides follows from its keys, their counts and the sketch, so all nodes decide alike, and so
// does a job that continues from a checkpoint. A node of a sharded table counts the keys that it
// owns; its lines follow those of the nodes before it, so that no two nodes have a line of the same
// number.
//
// Rows that are set by an assign are not counted.
#ifndef TFSPS_CORE_GROUP_ADMISSION_POLICY_H_
#define TFSPS_CORE_GROUP_ADMISSION_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/admission_sketch.h"
#include "core/table/table_config.h"

namespace tsps {

struct AdmissionPolicy {
  uint32_t count = 2;          // 2 to AdmissionSketch::kMostCount
  uint32_t half_life = 10000;  // of counts without a row, in steps
  uint64_t lines = 1;          // of a node's sketch, as AdmissionSketch::LinesFor returns
};

// Returns the name of the table of a table's sketch.
inline std::string SketchName(const std::string& table) { return table + ".sketch"; }

// Returns its uuid: the complement of the table's uuid.
inline std::string SketchUuid(std::string uuid) {
  for (char& digit : uuid) {
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    digit = "fedcba9876543210"[value & 15];
  }
  return uuid;
}

// Returns the name of the plane with the lines of a sketch, for tables that admit keys at `count`.
inline const char* SketchPlane(uint32_t count) {
  return AdmissionSketch::IsWide(count) ? "counts_of_8_bits" : "counts_of_4_bits";
}

// Returns the configuration of the table of a table's sketch.
inline TableConfig SketchConfig(const TableConfig& table, const AdmissionPolicy& policy) {
  TableConfig config;
  config.name = SketchName(table.name);
  config.uuid = SketchUuid(table.uuid);
  config.dim = 1;
  config.key_limit = static_cast<int64_t>(policy.lines * std::max(1u, table.shard.nodes));
  config.metadata = {
      {SketchPlane(policy.count), PlaneType::kUint32, sizeof(SketchLine) / sizeof(uint32_t), 0}};
  return config;
}

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ADMISSION_POLICY_H_
