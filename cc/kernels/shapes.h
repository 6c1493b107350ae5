// Shape functions of the ops.
//
// Through the C API, a shape function sees neither attributes of type int nor the lists that inputs
// form. So the functions compute the lengths of the lists from the numbers of inputs and outputs,
// and take the row width from the carriers or the gradients. If the tables of a call have different
// widths, the last dimension stays unknown here, and the Python wrapper sets it.
#ifndef TFSPS_KERNELS_SHAPES_H_
#define TFSPS_KERNELS_SHAPES_H_

#include <tensorflow/c/ops.h>

namespace tsps {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

void NoOutputs(TF_ShapeInferenceContext*, TF_Status*);
void SameShape(TF_ShapeInferenceContext*, TF_Status*);
void ScalarOutputs(TF_ShapeInferenceContext*, TF_Status*);
void FactsShapes(TF_ShapeInferenceContext*, TF_Status*);
void GroupInfoShapes(TF_ShapeInferenceContext*, TF_Status*);
void LookupShapes(TF_ShapeInferenceContext*, TF_Status*);
void SegmentSumShapes(TF_ShapeInferenceContext*, TF_Status*);
void PooledLookupShapes(TF_ShapeInferenceContext*, TF_Status*);
void PooledSumShapes(TF_ShapeInferenceContext*, TF_Status*);
void PooledWeightGradShapes(TF_ShapeInferenceContext*, TF_Status*);
void UniqueShapes(TF_ShapeInferenceContext*, TF_Status*);
void ReadRowsShapes(TF_ShapeInferenceContext*, TF_Status*);
void GatherRowsShapes(TF_ShapeInferenceContext*, TF_Status*);
void PoolRowsShapes(TF_ShapeInferenceContext*, TF_Status*);
void MergeShapes(TF_ShapeInferenceContext*, TF_Status*);
void RingInfoShapes(TF_ShapeInferenceContext*, TF_Status*);
void KeepIfShapes(TF_ShapeInferenceContext*, TF_Status*);
void WeightedConcatShapes(TF_ShapeInferenceContext*, TF_Status*);
void MeanSplitShapes(TF_ShapeInferenceContext*, TF_Status*);
void RingRoundsShapes(TF_ShapeInferenceContext*, TF_Status*);
void PackShapes(TF_ShapeInferenceContext*, TF_Status*);
void PullTakeShapes(TF_ShapeInferenceContext*, TF_Status*);
void CachePlanShapes(TF_ShapeInferenceContext*, TF_Status*);
void CacheTakeShapes(TF_ShapeInferenceContext*, TF_Status*);
void CacheNextCopyShapes(TF_ShapeInferenceContext*, TF_Status*);
void UnpackMergeShapes(TF_ShapeInferenceContext*, TF_Status*);

}  // namespace tsps

#endif  // TFSPS_KERNELS_SHAPES_H_
