// The interface between TensorFlow's C API and the core: owners of TensorFlow's handles, typed
// views of a kernel's inputs and outputs, and the conversion of a Status to a TensorFlow error.
//
// Kernels use TensorFlow only through this header.
#ifndef TFSPS_KERNELS_TENSORS_H_
#define TFSPS_KERNELS_TENSORS_H_

#include <tensorflow/c/kernels.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tsps {

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using StatusOwner = std::unique_ptr<TF_Status, StatusDeleter>;

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};

// Converts a Status to a TensorFlow status.
void ToTensorFlow(const Status& status, TF_Status* out);

// A tensor that shares its buffer with TensorFlow. The buffer of an input must not be written.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TF_Tensor* owned) : tensor_(owned) {}

  int rank() const { return TF_NumDims(tensor_.get()); }
  int64_t dim(int axis) const { return TF_Dim(tensor_.get(), axis); }
  size_t size() const { return static_cast<size_t>(TF_TensorElementCount(tensor_.get())); }
  size_t bytes() const { return TF_TensorByteSize(tensor_.get()); }
  std::vector<int64_t> shape() const;
  template <typename T>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor_.get()));
  }
  // Returns element 0 of a string tensor, which is valid as long as the tensor.
  std::string_view string() const;

 private:
  std::unique_ptr<TF_Tensor, TensorDeleter> tensor_;
};

// Returns a shape for messages, such as "[2,3]".
std::string ShapeString(const std::vector<int64_t>& shape);

// The inputs and outputs of a running kernel. Indices count through all lists in the order of the
// op's definition.
class KernelContext {
 public:
  explicit KernelContext(TF_OpKernelContext* raw) : raw_(raw) {}

  Result<Tensor> Input(int index) const;
  // Returns an input of this rank. InvalidArgument, with `name` in the message: it has another
  // rank.
  Result<Tensor> Input(int index, int rank, const char* name) const;
  // Returns an input that is a vector of keys. InvalidArgument: an int32 cannot number its keys.
  Result<Tensor> Keys(int index) const;
  template <typename T>
  Result<T> Scalar(int index, const char* name) const {
    TSPS_ASSIGN_OR_RETURN(const Tensor tensor, Input(index, 0, name));
    return *tensor.data<T>();
  }
  Result<std::string> String(int index, const char* name) const;

  template <typename T>
  Result<Tensor> Output(int index, const std::vector<int64_t>& shape) const {
    return Output(index, TypeOf(static_cast<T*>(nullptr)), sizeof(T), shape);
  }
  template <typename T>
  Status OutputVector(int index, const std::vector<T>& values) const {
    TSPS_ASSIGN_OR_RETURN(const Tensor tensor,
                          Output<T>(index, {static_cast<int64_t>(values.size())}));
    if (!values.empty()) std::copy(values.begin(), values.end(), tensor.template data<T>());
    return Status();
  }
  Status OutputScalar(int index, int64_t value) const;
  // Allocates output `output` with the input's type. Reuses the input's buffer if no other tensor
  // shares it.
  Result<Tensor> InputAsOutput(int input, int output, const std::vector<int64_t>& shape) const;
  // Sets output `output` to input `input` without a copy.
  Status Forward(int input, int output) const;

  void Fail(const Status& status) const;

 private:
  static TF_DataType TypeOf(const float*) { return TF_FLOAT; }
  static TF_DataType TypeOf(const uint8_t*) { return TF_UINT8; }
  static TF_DataType TypeOf(const int32_t*) { return TF_INT32; }
  static TF_DataType TypeOf(const int64_t*) { return TF_INT64; }
  Result<Tensor> Output(int index, TF_DataType type, size_t item,
                        const std::vector<int64_t>& shape) const;

  TF_OpKernelContext* raw_;
};

// The attributes of the op for which a kernel is constructed.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* raw) : raw_(raw) {}

  Result<int64_t> Int64(const char* name) const;
  // InvalidArgument, naming the attribute: the number does not fit into an int.
  Result<int> Int(const char* name) const;
  Result<bool> Bool(const char* name) const;
  Result<std::string> String(const char* name) const;
  Result<std::vector<int>> IntList(const char* name) const;
  Result<std::vector<std::string>> StringList(const char* name) const;
  void Fail(const Status& status) const;

 private:
  TF_OpKernelConstruction* raw_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_TENSORS_H_
