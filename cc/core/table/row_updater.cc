#include "core/table/row_updater.h"

#include <cmath>

#include "core/base/simd.h"

namespace tsps {
namespace {

// Returns whether the rule's hyperparameters begin with those of Adam.
bool HasMoments(OptimizerKind kind) {
  return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAmsgrad ||
         kind == OptimizerKind::kAdamW;
}

// Returns base^exponent by squaring. std::pow differs in the last bit between versions of libm, so
// the tables of two nodes would differ, too.
double Power(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

TSPS_SIMD_CLONES
void SgdRow(size_t dim, float learning_rate, const float* __restrict__ g, float* __restrict__ w) {
  for (size_t i = 0; i < dim; ++i) w[i] -= learning_rate * g[i];
}

TSPS_SIMD_CLONES
void AdagradRow(size_t dim, float learning_rate, float epsilon, const float* __restrict__ g,
                float* __restrict__ w, float* __restrict__ accumulator) {
  for (size_t i = 0; i < dim; ++i) {
    const float sum = accumulator[i] + g[i] * g[i];
    accumulator[i] = sum;
    w[i] -= learning_rate * g[i] / std::sqrt(sum + epsilon);
  }
}

TSPS_SIMD_CLONES
void AdamRow(size_t dim, float alpha, float one_minus_beta_1, float one_minus_beta_2, float epsilon,
             const float* __restrict__ g, float* __restrict__ w, float* __restrict__ m,
             float* __restrict__ v) {
  for (size_t i = 0; i < dim; ++i) {
    const float first = m[i] + (g[i] - m[i]) * one_minus_beta_1;
    const float second = v[i] + (g[i] * g[i] - v[i]) * one_minus_beta_2;
    m[i] = first;
    v[i] = second;
    w[i] -= first * alpha / (std::sqrt(second) + epsilon);
  }
}

// The rule of Keras's SGD. With Nesterov's momentum the row moves by the momentum that the next
// step would have.
TSPS_SIMD_CLONES
void MomentumRow(size_t dim, float learning_rate, float momentum, bool nesterov,
                 const float* __restrict__ g, float* __restrict__ w, float* __restrict__ m) {
  for (size_t i = 0; i < dim; ++i) {
    const float step = learning_rate * g[i];
    const float next = momentum * m[i] - step;
    m[i] = next;
    w[i] += nesterov ? momentum * next - step : next;
  }
}

// The rule of Reddi, Kale, Kumar 2018 in Keras's form: it uses the largest second moment, without
// bias corrections.
TSPS_SIMD_CLONES
void AmsgradRow(size_t dim, float alpha, float one_minus_beta_1, float one_minus_beta_2,
                float epsilon, const float* __restrict__ g, float* __restrict__ w,
                float* __restrict__ m, float* __restrict__ v, float* __restrict__ v_hat) {
  for (size_t i = 0; i < dim; ++i) {
    const float first = m[i] + (g[i] - m[i]) * one_minus_beta_1;
    const float second = v[i] + (g[i] * g[i] - v[i]) * one_minus_beta_2;
    const float largest = second > v_hat[i] ? second : v_hat[i];
    m[i] = first;
    v[i] = second;
    v_hat[i] = largest;
    w[i] -= first * alpha / (std::sqrt(largest) + epsilon);
  }
}

// The decay of Loshchilov and Hutter 2019, which is not part of the gradient.
TSPS_SIMD_CLONES
void DecayRow(size_t dim, float decay, float* __restrict__ w) {
  for (size_t i = 0; i < dim; ++i) w[i] -= w[i] * decay;
}

TSPS_SIMD_CLONES
void RmspropRow(size_t dim, float learning_rate, float rho, float epsilon,
                const float* __restrict__ g, float* __restrict__ w, float* __restrict__ velocity) {
  for (size_t i = 0; i < dim; ++i) {
    const float square = rho * velocity[i] + (1 - rho) * (g[i] * g[i]);
    velocity[i] = square;
    w[i] -= learning_rate * g[i] / std::sqrt(square + epsilon);
  }
}

TSPS_SIMD_CLONES
void RmspropMomentumRow(size_t dim, float learning_rate, float rho, float momentum, float epsilon,
                        const float* __restrict__ g, float* __restrict__ w,
                        float* __restrict__ velocity, float* __restrict__ m) {
  for (size_t i = 0; i < dim; ++i) {
    const float square = rho * velocity[i] + (1 - rho) * (g[i] * g[i]);
    const float next = momentum * m[i] + learning_rate * g[i] / std::sqrt(square + epsilon);
    velocity[i] = square;
    m[i] = next;
    w[i] -= next;
  }
}

// The rule of Graves 2013: it uses the variance of the gradients instead of their mean square.
TSPS_SIMD_CLONES
void RmspropCenteredRow(size_t dim, float learning_rate, float rho, float epsilon,
                        const float* __restrict__ g, float* __restrict__ w,
                        float* __restrict__ velocity, float* __restrict__ average) {
  for (size_t i = 0; i < dim; ++i) {
    const float square = rho * velocity[i] + (1 - rho) * (g[i] * g[i]);
    const float mean = rho * average[i] + (1 - rho) * g[i];
    velocity[i] = square;
    average[i] = mean;
    w[i] -= learning_rate * g[i] / std::sqrt(square - mean * mean + epsilon);
  }
}

TSPS_SIMD_CLONES
void RmspropCenteredMomentumRow(size_t dim, float learning_rate, float rho, float momentum,
                                float epsilon, const float* __restrict__ g, float* __restrict__ w,
                                float* __restrict__ velocity, float* __restrict__ m,
                                float* __restrict__ average) {
  for (size_t i = 0; i < dim; ++i) {
    const float square = rho * velocity[i] + (1 - rho) * (g[i] * g[i]);
    const float mean = rho * average[i] + (1 - rho) * g[i];
    const float next =
        momentum * m[i] + learning_rate * g[i] / std::sqrt(square - mean * mean + epsilon);
    velocity[i] = square;
    average[i] = mean;
    m[i] = next;
    w[i] -= next;
  }
}

// The rule of McMahan et al. 2013, algorithm 1, with Keras's shrinkage and learning_rate_power
// -0.5. `l2` includes beta / (2 learning_rate).
TSPS_SIMD_CLONES
void FtrlRow(size_t dim, float learning_rate, float l1, float l2, float l2_shrinkage,
             const float* __restrict__ g, float* __restrict__ w, float* __restrict__ accumulator,
             float* __restrict__ linear) {
  for (size_t i = 0; i < dim; ++i) {
    const float sum = accumulator[i] + g[i] * g[i];
    const float root = std::sqrt(sum);
    const float shrunk = g[i] + 2 * l2_shrinkage * w[i];
    const float line =
        linear[i] + (shrunk - (root - std::sqrt(accumulator[i])) / learning_rate * w[i]);
    const float above = line > l1 ? l1 : line;
    const float clipped = above < -l1 ? -l1 : above;
    accumulator[i] = sum;
    linear[i] = line;
    w[i] = (clipped - line) / (root / learning_rate + 2 * l2);
  }
}

// Sums partial sums per lane, in a fixed order, so that all clones compute the same bits.
TSPS_SIMD_CLONES
float SumOfSquares(size_t dim, const float* __restrict__ g) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += g[i + k] * g[i + k];
  }
  float sum = 0;
  for (; i < dim; ++i) sum += g[i] * g[i];
  for (size_t k = 0; k < kLanes; ++k) sum += lanes[k];
  return sum;
}

TSPS_SIMD_CLONES
void ClipNegative(size_t dim, float* __restrict__ w) {
  for (size_t i = 0; i < dim; ++i) w[i] = w[i] < 0 ? 0 : w[i];
}

TSPS_SIMD_CLONES
void Scale(size_t dim, float factor, float* __restrict__ w) {
  for (size_t i = 0; i < dim; ++i) w[i] *= factor;
}

// The rule of FBGEMM's EXACT_ROWWISE_ADAGRAD without weight decay, which TorchRec uses
// (rowwise_adagrad() in fbgemm_gpu/codegen/genscript/optimizers.py). The accumulator sums the mean
// of the squares, and epsilon is outside of the root. In AdagradRow it is inside, as in Keras.
void RowWiseAdagradRow(size_t dim, float learning_rate, float epsilon, const float* g, float* w,
                       float* accumulator) {
  *accumulator += SumOfSquares(dim, g) / static_cast<float>(dim);
  SgdRow(dim, learning_rate / (std::sqrt(*accumulator) + epsilon), g, w);
}

}  // namespace

RowUpdater::RowUpdater(OptimizerKind kind, size_t dim, const float* hyper, size_t n_hyper)
    : kind_(kind), dim_(dim), hyper_{} {
  if (const auto n_rule_hyper = static_cast<size_t>(HyperCount(kind)); n_hyper > n_rule_hyper) {
    constraint_ = static_cast<ConstraintKind>(std::lround(hyper[n_rule_hyper]));
    for (size_t i = 0; i < 4; ++i) limits_[i] = hyper[n_rule_hyper + 1 + i];
  }
  for (int i = 0; i < HyperCount(kind); ++i) hyper_[i] = hyper[i];
  if (kind == OptimizerKind::kFtrl) hyper_[2] += hyper_[4] / (2 * hyper_[0]);
  if (kind == OptimizerKind::kAdamW) hyper_[5] *= hyper_[0];
  if (HasMoments(kind)) {
    // From here on hyper_ contains alpha, 1 - beta_1, 1 - beta_2, epsilon, and the decay at [5].
    // They are computed in double: in float 1 - beta^t loses most of its digits for the usual
    // beta_2 = 0.999 and small t.
    const double beta_1 = hyper[1], beta_2 = hyper[2];
    const uint64_t steps = static_cast<uint64_t>(hyper[4] < 9e15f ? hyper[4] : 9e15f);
    hyper_[0] = static_cast<float>(hyper[0] * std::sqrt(1 - Power(beta_2, steps)) /
                                   (1 - Power(beta_1, steps)));
    hyper_[1] = static_cast<float>(1 - beta_1);
    hyper_[2] = static_cast<float>(1 - beta_2);
  }
}

void RowUpdater::Update(const float* gradient, float* row, float* const* slots) const {
  Apply(gradient, row, slots);
  if (constraint_ != ConstraintKind::kNone) Constrain(row);
}

void RowUpdater::Constrain(float* row) const {
  if (constraint_ == ConstraintKind::kNonNegative) return ClipNegative(dim_, row);
  const float low = limits_[0], high = limits_[1], rate = limits_[2], epsilon = limits_[3];
  const float norm = std::sqrt(SumOfSquares(dim_, row));
  float target = norm < high ? norm : high;
  if (constraint_ == ConstraintKind::kUnitNorm) target = 1;
  if (constraint_ == ConstraintKind::kMinMaxNorm) {
    target = target > low ? target : low;
    target = rate * target + (1 - rate) * norm;
  }
  Scale(dim_, target / (epsilon + norm), row);
}

void RowUpdater::Apply(const float* gradient, float* row, float* const* slots) const {
  switch (kind_) {
    case OptimizerKind::kNone:
      break;
    case OptimizerKind::kSgd:
      SgdRow(dim_, hyper_[0], gradient, row);
      break;
    case OptimizerKind::kAdagrad:
      AdagradRow(dim_, hyper_[0], hyper_[1], gradient, row, slots[0]);
      break;
    case OptimizerKind::kAdam:
      AdamRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row, slots[0], slots[1]);
      break;
    case OptimizerKind::kAmsgrad:
      AmsgradRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row, slots[0],
                 slots[1], slots[2]);
      break;
    case OptimizerKind::kAdamW:
      DecayRow(dim_, hyper_[5], row);
      AdamRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row, slots[0], slots[1]);
      break;
    case OptimizerKind::kMomentum:
      MomentumRow(dim_, hyper_[0], hyper_[1], hyper_[2] != 0, gradient, row, slots[0]);
      break;
    case OptimizerKind::kRmsprop:
      RmspropRow(dim_, hyper_[0], hyper_[1], hyper_[3], gradient, row, slots[0]);
      break;
    case OptimizerKind::kRmspropMomentum:
      RmspropMomentumRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row, slots[0],
                         slots[1]);
      break;
    case OptimizerKind::kRmspropCentered:
      RmspropCenteredRow(dim_, hyper_[0], hyper_[1], hyper_[3], gradient, row, slots[0], slots[1]);
      break;
    case OptimizerKind::kRmspropCenteredMomentum:
      RmspropCenteredMomentumRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row,
                                 slots[0], slots[1], slots[2]);
      break;
    case OptimizerKind::kFtrl:
      FtrlRow(dim_, hyper_[0], hyper_[1], hyper_[2], hyper_[3], gradient, row, slots[0], slots[1]);
      break;
    case OptimizerKind::kRowWiseAdagrad:
      RowWiseAdagradRow(dim_, hyper_[0], hyper_[1], gradient, row, slots[0]);
      break;
  }
}

void StoredRowUpdater::UpdateNarrow(int64_t key, const float* gradient, char* row,
                                    float* const* slots) {
  WidenRow(table_.row_type, row, values_.size(), values_.data());
  updater_.Update(gradient, values_.data(), slots);
  if (table_.rounding == Rounding::kNearest) {
    return NarrowRow(table_.row_type, values_.data(), values_.size(), row);
  }
  const uint64_t draw = RowDraw(table_.initializer, key, step_);
  NarrowRowStochastically(table_.row_type, values_.data(), values_.size(), draw, row);
}

}  // namespace tsps
