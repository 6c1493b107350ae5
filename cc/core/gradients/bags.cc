#include "core/gradients/bags.h"

#include <algorithm>
#include <cmath>

#include "core/base/prefetch.h"
#include "core/gradients/row_sums.h"

namespace tsps {
namespace {

// The smallest number of bags for which another thread saves more than its start costs.
constexpr size_t kGrain = 64;
// The number of rows that are prefetched before the first of them is added.
constexpr size_t kPiece = 16;

}  // namespace

Result<Combiner> CombinerFromName(const std::string& name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtn;
  return Error(Code::kInvalidArgument, "unknown combiner; expected sum, mean or sqrtn. Received: '",
               name, "'");
}

Status ValidateSplits(const int64_t* splits, size_t n_splits, size_t n_items) {
  if (n_splits == 0) {
    return Error(Code::kInvalidArgument,
                 "row splits must have at least one element. Received: none");
  }
  if (splits[0] != 0) {
    return Error(Code::kInvalidArgument, "row splits must start at 0. Received: ", splits[0]);
  }
  for (size_t b = 1; b < n_splits; ++b) {
    if (splits[b] < splits[b - 1]) {
      return Error(Code::kInvalidArgument, "row splits must not decrease. Received: splits[", b - 1,
                   "]=", splits[b - 1], ", splits[", b, "]=", splits[b]);
    }
  }
  if (static_cast<uint64_t>(splits[n_splits - 1]) != n_items) {
    return Error(Code::kInvalidArgument, "row splits must end at the number of items, ", n_items,
                 ". Received: ", splits[n_splits - 1]);
  }
  return Status();
}

float BagDivisor(const BagSpan& bags, size_t b) {
  if (bags.combiner == Combiner::kSum) return 1;
  const int64_t begin = bags.splits[b], end = bags.splits[b + 1];
  const bool squared = bags.combiner == Combiner::kSqrtn;
  float sum = 0;
  if (bags.weights == nullptr) {
    sum = static_cast<float>(end - begin);
  } else {
    for (int64_t i = begin; i < end; ++i) {
      sum += squared ? bags.weights[i] * bags.weights[i] : bags.weights[i];
    }
  }
  return squared ? std::sqrt(sum) : sum;
}

void PoolBags(const BagSpan& bags, const float* const* rows, size_t dim, float* pooled,
              Executor& executor) {
  executor.ParallelFor(bags.n_bags, kGrain, [&](size_t first, size_t last) {
    for (size_t b = first; b < last; ++b) {
      float* const out = pooled + b * dim;
      std::fill(out, out + dim, 0.0f);
      const float divisor = BagDivisor(bags, b);
      if (divisor == 0) continue;
      const size_t end = static_cast<size_t>(bags.splits[b + 1]);
      for (size_t i = static_cast<size_t>(bags.splits[b]); i < end; i += kPiece) {
        const float* piece[kPiece];
        const size_t n = std::min(kPiece, end - i);
        for (size_t j = 0; j < n; ++j) {
          piece[j] = rows[bags.inverse[i + j]];
          Prefetch(piece[j], dim * sizeof(float));
        }
        AddRows(piece, bags.weights == nullptr ? nullptr : bags.weights + i, n, dim, out);
      }
      if (divisor != 1) {
        for (size_t d = 0; d < dim; ++d) out[d] /= divisor;
      }
    }
  });
}

Status PooledSegmentSum(const std::vector<PooledGradientSpan>& spans, size_t n_keys, size_t dim,
                        float* sums, Executor& executor) {
  std::vector<RowSpan> rows;
  std::vector<std::vector<int32_t>> positions(spans.size());  // each item's bag
  std::vector<std::vector<float>> weights(spans.size());
  for (size_t s = 0; s < spans.size(); ++s) {
    const BagSpan& bags = spans[s].bags;
    const size_t n_items = static_cast<size_t>(bags.splits[bags.n_bags]);
    TSPS_RETURN_IF_ERROR(ValidateSplits(bags.splits, bags.n_bags + 1, n_items));
    const bool weighted = bags.weights != nullptr || bags.combiner != Combiner::kSum;
    positions[s].resize(n_items);
    if (weighted) weights[s].resize(n_items);
    for (size_t b = 0; b < bags.n_bags; ++b) {
      const float divisor = BagDivisor(bags, b);
      for (int64_t i = bags.splits[b]; i < bags.splits[b + 1]; ++i) {
        positions[s][static_cast<size_t>(i)] = static_cast<int32_t>(b);
        if (!weighted) continue;
        const float weight = bags.weights == nullptr ? 1.0f : bags.weights[i];
        weights[s][static_cast<size_t>(i)] = divisor == 0 ? 0.0f : weight / divisor;
      }
    }
    rows.push_back({spans[s].gradients, bags.inverse, n_items, positions[s].data(),
                    weighted ? weights[s].data() : nullptr});
  }
  return SumRowsByKey(rows, n_keys, dim, sums, executor);
}

}  // namespace tsps
