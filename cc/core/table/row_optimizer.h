// Row optimizers: what they are called, which slots they keep, what their steps need. All are lazy:
// only touched rows change. row_updater.h has the rules themselves.
//
// Each rule takes its hyperparameters as a float vector that comes with every step, so that
// learning rate schedules drive the tables. With unique keys a rule gives what the Keras optimizer
// of the same name gives for the touched rows, if Keras has one.
#ifndef TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_
#define TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

enum class OptimizerKind : uint32_t {
  kNone = 0,     // no optimizer bound: rows can be read and assigned, not trained
  kSgd = 1,      // slots: none           hyper: [learning_rate]
  kAdagrad = 2,  // slots: accumulator    hyper: [learning_rate, epsilon]
  // t = 1, 2, ... counts the optimizer's steps (Keras's iterations + 1), not the row's updates.
  kAdam = 3,  // slots: m, v           hyper: [learning_rate, beta_1, beta_2, epsilon, t]
  // The slot is one float per row.
  kRowWiseAdagrad = 4,  // slots: accumulator    hyper: [learning_rate, epsilon]
  // nesterov: 0 or 1.
  kMomentum = 5,  // slots: momentum       hyper: [learning_rate, momentum, nesterov]
  kAmsgrad = 6,   // slots: m, v, v_hat    hyper: as kAdam
  kAdamW = 7,     // slots: m, v           hyper: as kAdam, weight_decay
  // slots: velocity; with momentum that, too; centered, average_gradient, too
  // hyper: [learning_rate, rho, momentum, epsilon]
  kRmsprop = 8,
  kRmspropMomentum = 9,
  kRmspropCentered = 10,
  kRmspropCenteredMomentum = 11,
  // slots: accumulator, linear    hyper: [learning_rate, l1, l2, l2_shrinkage, beta]
  kFtrl = 12,
};

constexpr int kMaxSlots = 4;

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kNone;
  // Initial value of every element of slot k of a new row.
  float slot_init[kMaxSlots] = {0, 0, 0, 0};
};

// An optimizer, and how many steps it has made.
struct OptimizerUse {
  uint64_t id = 0;  // 0: nobody says which; it may train every table
  uint64_t steps = 0;
};

// "none", "sgd", "adagrad", "adam", "rowwise_adagrad", "momentum", "amsgrad", "adamw", "rmsprop",
// "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum", "ftrl".
Result<OptimizerKind> OptimizerKindFromName(const std::string& name);
const char* OptimizerKindName(OptimizerKind kind);
// Whether a number that was read from a file is an OptimizerKind.
bool IsOptimizerKind(uint32_t number);
int SlotCount(OptimizerKind kind);
int HyperCount(OptimizerKind kind);
// Name of slot k, for files and messages: "accumulator", "m", "v" ...
const char* SlotName(OptimizerKind kind, int slot);
// Floats per row of slot k, of a table with rows of `dim` floats: dim, or 1. 0: there is no slot k.
size_t SlotWidth(OptimizerKind kind, int slot, size_t dim);
// Refuses a wrong number of hyperparameters (they may be followed by a constraint's) and non-finite
// ones, naming them.
Status ValidateHyper(OptimizerKind kind, const float* hyper, size_t n_hyper);

// What is done to a row after its update, as Keras's constraints of the same names do it to a
// matrix with axis=1: the norm is that of a row. Its parameters follow a rule's hyperparameters:
// [kind, min_value, max_value, rate, epsilon].
enum class ConstraintKind : uint32_t {
  kNone = 0,
  kNonNegative = 1,  // negative elements become 0
  kMaxNorm = 2,      // a norm above max_value becomes max_value
  kUnitNorm = 3,     // the norm becomes 1
  // A norm outside of [min_value, max_value] comes closer to it, by `rate` of the way.
  kMinMaxNorm = 4,
};
constexpr size_t kConstraintParameters = 5;

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_OPTIMIZER_H_
