// Row optimizers: their names, slots and hyperparameters. All of them are lazy: a step changes only
// the rows of its keys. row_updater.h has the rules themselves.
//
// Every step brings the hyperparameters of a rule as a vector of floats, so that learning rate
// schedules drive the tables. If Keras has an optimizer of the same name, a rule computes for the
// rows of unique keys what that optimizer computes.
#ifndef TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_
#define TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

enum class OptimizerKind : uint32_t {
  kNone = 0,     // no optimizer is bound: rows can be read and assigned, not trained
  kSgd = 1,      // slots: none           hyper: [learning_rate]
  kAdagrad = 2,  // slots: accumulator    hyper: [learning_rate, epsilon]
  // t = 1, 2, ... is the number of the optimizer's step (Keras's iterations + 1), not of the row's
  // update.
  kAdam = 3,  // slots: m, v           hyper: [learning_rate, beta_1, beta_2, epsilon, t]
  // The slot is one float per row.
  kRowWiseAdagrad = 4,  // slots: accumulator    hyper: [learning_rate, epsilon]
  // nesterov: 0 or 1.
  kMomentum = 5,  // slots: momentum       hyper: [learning_rate, momentum, nesterov]
  kAmsgrad = 6,   // slots: m, v, v_hat    hyper: as kAdam
  kAdamW = 7,     // slots: m, v           hyper: as kAdam, weight_decay
  // slots: velocity; with momentum also momentum; if centered, also average_gradient
  // hyper: [learning_rate, rho, momentum, epsilon]
  kRmsprop = 8,
  kRmspropMomentum = 9,
  kRmspropCentered = 10,
  kRmspropCenteredMomentum = 11,
  // slots: accumulator, linear    hyper: [learning_rate, l1, l2, l2_shrinkage, beta]
  kFtrl = 12,
};

constexpr int kMaxSlots = 4;

// A rule, and the initial values of its slots.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kNone;
  // The initial value of every element of slot k in a new row.
  float slot_init[kMaxSlots] = {0, 0, 0, 0};
};

// An optimizer, and its number of steps.
struct OptimizerUse {
  uint64_t id = 0;  // 0: not known; it may train every table
  uint64_t steps = 0;
};

// Returns the kind of a name. InvalidArgument, with the list of names, for others. Names: "none",
// "sgd", "adagrad", "adam", "rowwise_adagrad", "momentum", "amsgrad", "adamw", "rmsprop",
// "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum", "ftrl".
Result<OptimizerKind> OptimizerKindFromName(const std::string& name);
const char* OptimizerKindName(OptimizerKind kind);
// Returns whether a number from a file is an OptimizerKind.
bool IsOptimizerKind(uint32_t number);
// Returns the number of slots, and of hyperparameters without a constraint.
int SlotCount(OptimizerKind kind);
int HyperCount(OptimizerKind kind);
// Returns the name of a slot, for files and messages: "accumulator", "m", "v" ...
const char* SlotName(OptimizerKind kind, int slot);
// Returns the floats per row of a slot, in a table with rows of `dim` floats: dim or 1; 0 if there
// is no such slot.
size_t SlotWidth(OptimizerKind kind, int slot, size_t dim);
// Returns InvalidArgument, naming the hyperparameter, for a wrong number of them or a value that
// the rule does not accept. The parameters of a constraint may follow them.
Status ValidateHyper(OptimizerKind kind, const float* hyper, size_t n_hyper);

// The change of a row after its update. Constraints act like Keras's of the same names on a matrix
// with axis=1: the norm is that of a row. The parameters follow the rule's hyperparameters: [kind,
// min_value, max_value, rate, epsilon].
enum class ConstraintKind : uint32_t {
  kNone = 0,
  kNonNegative = 1,  // sets negative elements to 0
  kMaxNorm = 2,      // scales rows to a norm of at most max_value
  kUnitNorm = 3,     // scales rows to a norm of 1
  // Moves a norm outside of [min_value, max_value] towards it, by `rate` of the distance.
  kMinMaxNorm = 4,
};
constexpr size_t kConstraintParameters = 5;

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_
