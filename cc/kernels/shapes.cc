#include "kernels/shapes.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/tensors.h"

namespace tsps {
namespace {

struct ShapeDeleter {
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};
using Shape = std::unique_ptr<TF_ShapeHandle, ShapeDeleter>;

struct DimensionDeleter {
  void operator()(TF_DimensionHandle* dimension) const { TF_DeleteDimensionHandle(dimension); }
};

// A shape inference. It keeps the first error, and does nothing after it.
class Inference {
 public:
  Inference(TF_ShapeInferenceContext* context, TF_Status* status)
      : context_(context), status_(status) {
    TF_SetStatus(status_, TF_OK, "");
    n_inputs_ = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
    // The API does not return the number of outputs, so this sets outputs until one does not exist.
    const StatusOwner probe(TF_NewStatus());
    const Shape unknown = Vector();
    while (true) {
      TF_ShapeInferenceContextSetOutput(context_, n_outputs_, unknown.get(), probe.get());
      if (TF_GetCode(probe.get()) != TF_OK) break;
      ++n_outputs_;
    }
  }

  int inputs() const { return n_inputs_; }
  int outputs() const { return n_outputs_; }
  bool failed() const { return TF_GetCode(status_) != TF_OK; }

  Shape Input(int index) {
    Shape shape(TF_NewShapeHandle());
    if (!failed()) TF_ShapeInferenceContextGetInput(context_, index, shape.get(), status_);
    return shape;
  }
  Shape InputOfRank(int index, int64_t rank) {
    const Shape input = Input(index);
    Shape shape(TF_NewShapeHandle());
    if (!failed()) {
      TF_ShapeInferenceContextWithRank(context_, input.get(), rank, shape.get(), status_);
    }
    return shape;
  }
  Shape Scalar() { return Shape(TF_ShapeInferenceContextScalar(context_)); }
  // Returns [size]. -1, TensorFlow's unknown dimension, gives [?].
  Shape Vector(int64_t size = -1) {
    return Shape(TF_ShapeInferenceContextVectorFromSize(context_, static_cast<size_t>(size)));
  }
  Shape Concatenate(const Shape& first, const Shape& second) {
    Shape shape(TF_NewShapeHandle());
    if (!failed()) {
      TF_ShapeInferenceContextConcatenateShapes(context_, first.get(), second.get(), shape.get(),
                                                status_);
    }
    return shape;
  }
  // Returns a dimension; -1 if it is unknown.
  int64_t Dimension(const Shape& shape, int64_t axis) {
    if (failed() || !TF_ShapeInferenceContextRankKnown(context_, shape.get())) return -1;
    if (axis < 0) axis += TF_ShapeInferenceContextRank(context_, shape.get());
    if (axis < 0) return -1;
    const std::unique_ptr<TF_DimensionHandle, DimensionDeleter> dimension(TF_NewDimensionHandle());
    TF_ShapeInferenceContextDim(context_, shape.get(), axis, dimension.get());
    return TF_DimensionHandleValueKnown(dimension.get()) ? TF_DimensionHandleValue(dimension.get())
                                                         : -1;
  }
  // Returns the number of elements; -1 if it is unknown.
  int64_t Size(const Shape& shape) {
    if (failed() || !TF_ShapeInferenceContextRankKnown(context_, shape.get())) return -1;
    int64_t size = 1;
    for (int axis = 0; axis < TF_ShapeInferenceContextRank(context_, shape.get()); ++axis) {
      const int64_t dimension = Dimension(shape, axis);
      if (dimension < 0) return -1;
      size *= dimension;
    }
    return size;
  }
  void SetOutput(int index, const Shape& shape) {
    if (!failed()) TF_ShapeInferenceContextSetOutput(context_, index, shape.get(), status_);
  }

  // Returns [width] if the last dimensions of inputs [begin, end), which have rank 2, are known and
  // equal; else [?].
  Shape Width(int begin, int end) {
    int64_t width = -1;
    for (int i = begin; i < end; ++i) {
      const int64_t last = Dimension(InputOfRank(i, 2), 1);
      if (i > begin && last != width) return Vector();
      width = last;
    }
    return Vector(width);
  }

 private:
  TF_ShapeInferenceContext* context_;
  TF_Status* status_;
  int n_inputs_ = 0;
  int n_outputs_ = 0;
};

// Sets the shapes of the outputs sums, T*float [u_t, width]. The first n_grads inputs are
// gradients, the last T are keys.
void SumShapes(Inference* inference, int n_grads) {
  int64_t width = -1;
  for (int i = 0; i < n_grads; ++i) {
    const int64_t last = inference->Dimension(inference->Input(i), -1);
    if (i > 0 && last != width) {
      width = -1;
      break;
    }
    width = last;
  }
  const int tables = inference->outputs();
  const int keys = inference->inputs() - tables;
  for (int t = 0; t < tables; ++t) {
    inference->SetOutput(
        t, inference->Concatenate(inference->InputOfRank(keys + t, 1), inference->Vector(width)));
  }
}

}  // namespace

void NoOutputs(TF_ShapeInferenceContext*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

// Output 0 has the shape of input 0.
void SameShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Input(0));
}

void ScalarOutputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  for (int i = 0; i < inference.outputs(); ++i) inference.SetOutput(i, inference.Scalar());
}

void FactsShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Vector());
  inference.SetOutput(1, inference.Scalar());
}

void GroupInfoShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Scalar());
  inference.SetOutput(1, inference.Scalar());
  inference.SetOutput(2, inference.Vector(8));
}

// Inputs: ids N, paths T, uuids T, carriers T. Outputs: rows N, keys T, inverses N.
void LookupShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = (3 * inference.outputs() - inference.inputs()) / 5;
  const int tables = inference.outputs() - 2 * features;
  const Shape width = inference.Width(features + 2 * tables, features + 3 * tables);
  for (int f = 0; f < features; ++f) {
    const Shape ids = inference.Input(f);
    inference.SetOutput(f, inference.Concatenate(ids, width));
    inference.SetOutput(features + tables + f, ids);
  }
  for (int t = 0; t < tables; ++t) inference.SetOutput(features + t, inference.Vector());
}

// Inputs: grads N, inverses N, keys T. Outputs: sums T.
void SegmentSumShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  SumShapes(&inference, (inference.inputs() - inference.outputs()) / 2);
}

// Inputs: ids N, splits N, weights N, paths T, uuids T, carriers T. Outputs: pooled N, keys T,
// inverses N.
void PooledLookupShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = (3 * inference.outputs() - inference.inputs()) / 3;
  const int tables = inference.outputs() - 2 * features;
  const Shape width = inference.Width(3 * features + 2 * tables, 3 * features + 3 * tables);
  for (int f = 0; f < features; ++f) {
    const int64_t splits = inference.Dimension(inference.InputOfRank(features + f, 1), 0);
    const Shape bags = inference.Vector(splits > 0 ? splits - 1 : -1);
    inference.SetOutput(f, inference.Concatenate(bags, width));
    inference.SetOutput(features + tables + f, inference.InputOfRank(f, 1));
    inference.InputOfRank(2 * features + f, 1);  // refuses weights of another rank
  }
  for (int t = 0; t < tables; ++t) inference.SetOutput(features + t, inference.Vector());
}

// Inputs: grads N, splits N, weights N, inverses N, keys T. Outputs: sums T.
void PooledSumShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  SumShapes(&inference, (inference.inputs() - inference.outputs()) / 4);
}

// Inputs: grads N, splits N, weights N, inverses N, keys T, ... Outputs: weight_grads N, with the
// shapes of the weights.
void PooledWeightGradShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = inference.outputs();
  for (int f = 0; f < features; ++f) {
    inference.SetOutput(f, inference.InputOfRank(2 * features + f, 1));
  }
}

// Outputs: P matrices, a scalar, six vectors.
void CachePlanShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int planes = inference.outputs() - 7;
  for (int p = 0; p < planes; ++p) {
    inference.SetOutput(p, inference.Concatenate(inference.Vector(), inference.Vector()));
  }
  inference.SetOutput(planes, inference.Scalar());
}

// Inputs: cache, ids N. Outputs: inverses N, three vectors, a scalar, two vectors, a scalar.
void CacheTakeShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = inference.inputs() - 1;
  for (int i = 0; i < inference.outputs(); ++i) {
    const bool scalar = i == features + 3 || i == features + 6;
    inference.SetOutput(i, i < features ? inference.Input(i + 1)
                           : scalar     ? inference.Scalar()
                                        : inference.Vector());
  }
}

// Outputs: two scalars, a matrix, a vector.
void CacheNextCopyShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Scalar());
  inference.SetOutput(1, inference.Scalar());
  inference.SetOutput(2, inference.Concatenate(inference.Vector(), inference.Vector()));
  inference.SetOutput(3, inference.Vector());
}

// Inputs: ids N. Outputs: inverses N, keys T.
void UniqueShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  for (int i = 0; i < inference.outputs(); ++i) {
    inference.SetOutput(i, i < inference.inputs() ? inference.Input(i) : inference.Vector());
  }
}

// Inputs: ids N, paths T, uuids T, carriers T. Outputs: rows N.
void ReadRowsShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = inference.outputs();
  const int tables = (inference.inputs() - features) / 3;
  const Shape width = inference.Width(features + 2 * tables, features + 3 * tables);
  for (int f = 0; f < features; ++f) {
    inference.SetOutput(f, inference.Concatenate(inference.Input(f), width));
  }
}

// Inputs: inverses N, rows T, keys T, carriers T. Outputs: gathered N.
void GatherRowsShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = inference.outputs();
  const int tables = (inference.inputs() - features) / 3;
  const Shape width = inference.Width(features + 2 * tables, features + 3 * tables);
  for (int f = 0; f < features; ++f) {
    inference.SetOutput(f, inference.Concatenate(inference.Input(f), width));
  }
}

// Inputs: inverses N, splits N, weights N, rows T, keys T, carriers T. Outputs: pooled N.
void PoolRowsShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int features = inference.outputs();
  const int tables = (inference.inputs() - 3 * features) / 3;
  const Shape width = inference.Width(3 * features + 2 * tables, 3 * features + 3 * tables);
  for (int f = 0; f < features; ++f) {
    const int64_t splits = inference.Dimension(inference.InputOfRank(features + f, 1), 0);
    const Shape bags = inference.Vector(splits > 0 ? splits - 1 : -1);
    inference.SetOutput(f, inference.Concatenate(bags, width));
    inference.InputOfRank(2 * features + f, 1);  // refuses weights of another rank
  }
}

// The shapes of TspsMerge and TspsNodeMerge. Inputs: keys T, grads T, ... Outputs: keys T, grads T,
// counts T.
void MergeShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int tables = inference.outputs() / 3;
  for (int t = 0; t < tables; ++t) {
    const int64_t width = inference.Dimension(inference.InputOfRank(tables + t, 2), 1);
    inference.SetOutput(t, inference.Vector());
    inference.SetOutput(tables + t,
                        inference.Concatenate(inference.Vector(), inference.Vector(width)));
    inference.SetOutput(2 * tables + t, inference.Vector());
  }
}

void RingInfoShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Vector(9));
}

// Inputs: weight, keys T, grads T. Outputs: keys T, grads T.
void KeepIfShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int tables = inference.outputs() / 2;
  for (int t = 0; t < tables; ++t) {
    const int64_t width = inference.Dimension(inference.InputOfRank(1 + tables + t, 2), 1);
    inference.SetOutput(t, inference.Vector());
    inference.SetOutput(tables + t,
                        inference.Concatenate(inference.Vector(), inference.Vector(width)));
  }
}

// Inputs: tensors N, weight, tail. Output: buffer.
void WeightedConcatShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int weight = inference.inputs() - 2;
  int64_t total = 0;
  for (int i = 0; i < inference.inputs() && total >= 0; ++i) {
    const int64_t size = i == weight ? 0 : inference.Size(inference.Input(i));
    total = size < 0 ? -1 : total + size;
  }
  inference.SetOutput(0, inference.Vector(total));
}

// Inputs: like N, sums, weights. Outputs: means N.
void MeanSplitShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  for (int i = 0; i < inference.outputs(); ++i) inference.SetOutput(i, inference.Input(i));
}

// Outputs: vectors.
void PackShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  for (int i = 0; i < inference.outputs(); ++i) inference.SetOutput(i, inference.Vector());
}

// Inputs: served, keys T, paths T, uuids T. Outputs: rows T. No input has the width of the rows;
// the Python wrapper sets it.
void PullTakeShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  for (int t = 0; t < inference.outputs(); ++t) {
    inference.SetOutput(t, inference.Concatenate(inference.Vector(), inference.Vector()));
  }
}

void RingRoundsShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  inference.SetOutput(0, inference.Vector(1));
}

// The shapes of TspsUnpackMerge and TspsRingCollect. Outputs: keys T, grads T, counts T. No input
// has the width of the rows; the Python wrapper sets it.
void UnpackMergeShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  const int tables = inference.outputs() / 3;
  for (int t = 0; t < tables; ++t) {
    inference.SetOutput(t, inference.Vector());
    inference.SetOutput(tables + t, inference.Concatenate(inference.Vector(), inference.Vector()));
    inference.SetOutput(2 * tables + t, inference.Vector());
  }
}

}  // namespace tsps
