// The border between TensorFlow's C API and the core: owners for its handles, typed views of a
// kernel's inputs and outputs, and the one place where a Status becomes a TensorFlow error.
//
// Kernels see TensorFlow through this header only.
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

// Writes `status` into TensorFlow's.
void ToTensorFlow(const Status& status, TF_Status* out);

// A tensor that shares its buffer with TensorFlow's. Input buffers are not to be written to.
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
  // Element 0 of a string tensor; valid as long as the tensor.
  std::string_view string() const;

 private:
  std::unique_ptr<TF_Tensor, TensorDeleter> tensor_;
};

// "[2,3]", for messages.
std::string ShapeString(const std::vector<int64_t>& shape);

// What a kernel may ask for while it runs. Inputs and outputs count through all lists in the order
// of the op's definition.
class KernelContext {
 public:
  explicit KernelContext(TF_OpKernelContext* raw) : raw_(raw) {}

  Result<Tensor> Input(int index) const;
  // The same, refusing any other rank; `name` is for the message.
  Result<Tensor> Input(int index, int rank, const char* name) const;
  // A vector of keys, no more of them than an int32 position can tell apart.
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
  // Output `output`, of the input's type: in the input's buffer if nobody else has it, else in one
  // of its own.
  Result<Tensor> InputAsOutput(int input, int output, const std::vector<int64_t>& shape) const;
  // Output `output` is input `input`, uncopied.
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

// The attributes of the node a kernel is made for.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* raw) : raw_(raw) {}

  Result<int64_t> Int64(const char* name) const;
  // InvalidArgument, naming the attribute, for numbers beyond an int's.
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
