#include "core/exchange/reduced_gradients.h"

namespace tsps {

size_t ReducedGradients::n() const {
  size_t n = 0;
  for (const GradientSet& set : sets_) n += set.n;
  return n;
}

void ReducedGradients::Drop(size_t i) {
  if (i < copies_.size()) copies_[i] = Copy();
}

void ReducedGradients::AddCopy(const GradientSet& set) {
  copies_.push_back({{set.keys, set.keys + set.n},
                     {set.counts, set.counts + set.n},
                     {set.rows, set.rows + set.n * dim_}});
  const Copy& copy = copies_.back();
  sets_.push_back({copy.keys.data(), copy.counts.data(), copy.rows.data(), set.n});
}

}  // namespace tsps
