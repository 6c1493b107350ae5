#include "core/table/row_optimizer.h"

#include <cmath>

namespace tsps {
namespace {

constexpr const char* kAdagradSlots[] = {"accumulator"};
constexpr const char* kAdamSlots[] = {"m", "v"};
constexpr const char* kSgdHyper[] = {"learning_rate"};
constexpr const char* kAdagradHyper[] = {"learning_rate", "epsilon"};
constexpr const char* kAdamHyper[] = {"learning_rate", "beta_1", "beta_2",
                                      "epsilon",       "t",      "weight_decay"};
constexpr const char* kMomentumSlots[] = {"momentum"};
constexpr const char* kMomentumHyper[] = {"learning_rate", "momentum", "nesterov"};
constexpr const char* kAmsgradSlots[] = {"m", "v", "v_hat"};
constexpr const char* kRmspropSlots[] = {"velocity", "momentum", "average_gradient"};
constexpr const char* kCenteredSlots[] = {"velocity", "average_gradient"};
constexpr const char* kRmspropHyper[] = {"learning_rate", "rho", "momentum", "epsilon"};
constexpr const char* kFtrlSlots[] = {"accumulator", "linear"};
constexpr const char* kFtrlHyper[] = {"learning_rate", "l1", "l2", "l2_shrinkage", "beta"};

struct Rule {
  const char* name;
  int n_slots;
  const char* const* slots;
  int n_hyper;
  const char* const* hyper;
  bool one_float;  // each slot has one float per row
};
// The rules, indexed by OptimizerKind.
constexpr Rule kRules[] = {
    {"none", 0, nullptr, 0, nullptr, false},
    {"sgd", 0, nullptr, 1, kSgdHyper, false},
    {"adagrad", 1, kAdagradSlots, 2, kAdagradHyper, false},
    {"adam", 2, kAdamSlots, 5, kAdamHyper, false},
    {"rowwise_adagrad", 1, kAdagradSlots, 2, kAdagradHyper, true},
    {"momentum", 1, kMomentumSlots, 3, kMomentumHyper, false},
    {"amsgrad", 3, kAmsgradSlots, 5, kAdamHyper, false},
    {"adamw", 2, kAdamSlots, 6, kAdamHyper, false},
    {"rmsprop", 1, kRmspropSlots, 4, kRmspropHyper, false},
    {"rmsprop_momentum", 2, kRmspropSlots, 4, kRmspropHyper, false},
    {"rmsprop_centered", 2, kCenteredSlots, 4, kRmspropHyper, false},
    {"rmsprop_centered_momentum", 3, kRmspropSlots, 4, kRmspropHyper, false},
    {"ftrl", 2, kFtrlSlots, 5, kFtrlHyper, false},
};
constexpr size_t kRuleCount = sizeof(kRules) / sizeof(kRules[0]);

const Rule& RuleOf(OptimizerKind kind) {
  const size_t index = static_cast<size_t>(kind);
  return kRules[index < kRuleCount ? index : 0];
}

}  // namespace

Result<OptimizerKind> OptimizerKindFromName(const std::string& name) {
  for (size_t i = 0; i < kRuleCount; ++i) {
    if (name == kRules[i].name) return static_cast<OptimizerKind>(i);
  }
  std::string known;
  for (const Rule& rule : kRules) known += (known.empty() ? "" : ", ") + std::string(rule.name);
  return Error(Code::kInvalidArgument, "unknown optimizer; expected one of ", known,
               ". Received: '", name, "'");
}

const char* OptimizerKindName(OptimizerKind kind) {
  return static_cast<size_t>(kind) < kRuleCount ? RuleOf(kind).name : "unknown";
}

bool IsOptimizerKind(uint32_t number) { return number < kRuleCount; }

int SlotCount(OptimizerKind kind) { return RuleOf(kind).n_slots; }

int HyperCount(OptimizerKind kind) { return RuleOf(kind).n_hyper; }

const char* SlotName(OptimizerKind kind, int slot) {
  const Rule& rule = RuleOf(kind);
  return slot >= 0 && slot < rule.n_slots ? rule.slots[slot] : "unknown";
}

size_t SlotWidth(OptimizerKind kind, int slot, size_t dim) {
  const Rule& rule = RuleOf(kind);
  if (slot < 0 || slot >= rule.n_slots) return 0;
  return rule.one_float ? 1 : dim;
}

namespace {

Status ValidateConstraint(const float* parameters) {
  // The kind is rounded, because hyperparameters may be averages over ranks.
  const float kind = std::round(parameters[0]), low = parameters[1], high = parameters[2];
  const float rate = parameters[3], epsilon = parameters[4];
  const bool known = kind >= 0 && kind <= 4;
  if (known && low >= 0 && high >= low && std::isfinite(high) && rate >= 0 && rate <= 1 &&
      epsilon >= 0 && std::isfinite(epsilon)) {
    return Status();
  }
  return Error(Code::kInvalidArgument, "a constraint must have a known kind, 0 <= min_value <= ",
               "max_value, a rate in [0, 1] and epsilon >= 0. Received: kind ", kind,
               ", min_value ", low, ", max_value ", high, ", rate ", rate, ", epsilon ", epsilon);
}

}  // namespace

Status ValidateHyper(OptimizerKind kind, const float* hyper, size_t n_hyper) {
  if (static_cast<size_t>(kind) >= kRuleCount) {
    return Error(Code::kInvalidArgument, "unknown optimizer kind ", static_cast<uint32_t>(kind));
  }
  const Rule& rule = RuleOf(kind);
  const auto n_rule_hyper = static_cast<size_t>(rule.n_hyper);
  if (n_hyper == n_rule_hyper + kConstraintParameters) {
    TSPS_RETURN_IF_ERROR(ValidateConstraint(hyper + n_rule_hyper));
    n_hyper = n_rule_hyper;
  }
  if (n_hyper != n_rule_hyper) {
    return Error(Code::kInvalidArgument, "optimizer ", rule.name, " takes ", rule.n_hyper,
                 " hyperparameters. Received: ", n_hyper);
  }
  for (size_t i = 0; i < n_hyper; ++i) {
    if (!std::isfinite(hyper[i])) {
      return Error(Code::kInvalidArgument, "hyperparameter ", rule.hyper[i], " of optimizer ",
                   rule.name, " must be finite. Received: ", hyper[i]);
    }
  }
  const auto refuse = [&](int i, const char* expected) {
    return Error(Code::kInvalidArgument, "hyperparameter ", rule.hyper[i], " of optimizer ",
                 rule.name, " ", expected, ". Received: ", hyper[i]);
  };
  if (rule.hyper == kAdamHyper) {
    for (int i = 1; i <= 2; ++i) {
      if (!(hyper[i] >= 0 && hyper[i] < 1)) return refuse(i, "must be in [0, 1)");
    }
    // A float counts exactly up to 2^24. By then the bias corrections have long been 1.
    if (!(hyper[4] >= 1)) return refuse(4, "counts from 1");
    if (kind == OptimizerKind::kAdamW && !(hyper[5] >= 0)) return refuse(5, "must be at least 0");
  }
  if (rule.hyper == kMomentumHyper) {
    if (!(hyper[1] >= 0 && hyper[1] <= 1)) return refuse(1, "must be in [0, 1]");
    if (hyper[2] != 0 && hyper[2] != 1) return refuse(2, "must be 0 or 1");
  }
  if (rule.hyper == kRmspropHyper) {
    for (int i = 1; i <= 2; ++i) {
      if (!(hyper[i] >= 0 && hyper[i] <= 1)) return refuse(i, "must be in [0, 1]");
    }
  }
  if (kind == OptimizerKind::kFtrl) {
    if (!(hyper[0] > 0)) return refuse(0, "must be positive");  // the row is divided by it
    for (int i = 1; i <= 4; ++i) {
      if (!(hyper[i] >= 0)) return refuse(i, "must be at least 0");
    }
  }
  return Status();
}

}  // namespace tsps
