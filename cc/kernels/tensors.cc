#include "kernels/tensors.h"

#include <tensorflow/c/tf_tstring.h>

#include <limits>
#include <utility>

#include "kernels/process.h"

namespace tsps {
namespace {

TF_Code CodeOf(Code code) {
  switch (code) {
    case Code::kOk:
      return TF_OK;
    case Code::kInvalidArgument:
      return TF_INVALID_ARGUMENT;
    case Code::kNotFound:
      return TF_NOT_FOUND;
    case Code::kAlreadyExists:
      return TF_ALREADY_EXISTS;
    case Code::kFailedPrecondition:
      return TF_FAILED_PRECONDITION;
    case Code::kOutOfRange:
      // Not TF_OUT_OF_RANGE, which means the end of the data: Keras' training loops would treat a
      // bad key as the end of an epoch.
      return TF_INVALID_ARGUMENT;
    case Code::kResourceExhausted:
      return TF_RESOURCE_EXHAUSTED;
    case Code::kDataLoss:
      return TF_DATA_LOSS;
    case Code::kPermissionDenied:
      return TF_PERMISSION_DENIED;
    case Code::kUnavailable:
      return TF_UNAVAILABLE;
    case Code::kDeadlineExceeded:
      return TF_DEADLINE_EXCEEDED;
    case Code::kAborted:
      return TF_ABORTED;
    case Code::kInternal:
      return TF_INTERNAL;
  }
  return TF_UNKNOWN;
}

// Converts an error of TensorFlow's own calls, such as access to an input that the op does not
// have.
Status FromTensorFlow(const TF_Status* status, const char* what, const char* name) {
  return Error(
      TF_GetCode(status) == TF_RESOURCE_EXHAUSTED ? Code::kResourceExhausted : Code::kInternal,
      what, " ", name, ": ", TF_Message(status));
}

Result<int> Narrow(int64_t value, const char* name) {
  if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) {
    return static_cast<int>(value);
  }
  return Error(Code::kInvalidArgument, "attribute ", name,
               " must fit in 32 bits. Received: ", value);
}

}  // namespace

void ToTensorFlow(const Status& status, TF_Status* out) {
  if (status.code() == Code::kResourceExhausted) NoteOutOfRoom();
  TF_SetStatus(out, CodeOf(status.code()), status.message().c_str());
}

std::vector<int64_t> Tensor::shape() const {
  std::vector<int64_t> shape(static_cast<size_t>(rank()));
  for (int axis = 0; axis < rank(); ++axis) shape[static_cast<size_t>(axis)] = dim(axis);
  return shape;
}

std::string_view Tensor::string() const {
  const auto* text = data<const TF_TString>();
  return {TF_TString_GetDataPointer(text), TF_TString_GetSize(text)};
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ",";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<Tensor> KernelContext::Input(int index) const {
  const StatusOwner status(TF_NewStatus());
  TF_Tensor* tensor = nullptr;
  TF_GetInput(raw_, index, &tensor, status.get());
  if (TF_GetCode(status.get()) != TF_OK) {
    return FromTensorFlow(status.get(), "input", std::to_string(index).c_str());
  }
  return Tensor(tensor);
}

Result<Tensor> KernelContext::Input(int index, int rank, const char* name) const {
  TSPS_ASSIGN_OR_RETURN(Tensor tensor, Input(index));
  if (tensor.rank() != rank) {
    return Error(Code::kInvalidArgument, name, " must have rank ", rank, ". Received: shape ",
                 ShapeString(tensor.shape()));
  }
  return tensor;
}

Result<Tensor> KernelContext::Keys(int index) const {
  TSPS_ASSIGN_OR_RETURN(Tensor keys, Input(index, 1, "keys"));
  if (keys.dim(0) > std::numeric_limits<int32_t>::max()) {
    return Error(Code::kInvalidArgument,
                 "a call can have at most 2147483647 keys. Received: ", keys.dim(0));
  }
  return keys;
}

Result<std::string> KernelContext::String(int index, const char* name) const {
  TSPS_ASSIGN_OR_RETURN(const Tensor tensor, Input(index, 0, name));
  return std::string(tensor.string());
}

Result<Tensor> KernelContext::Output(int index, TF_DataType type, size_t item,
                                     const std::vector<int64_t>& shape) const {
  size_t bytes = item;
  for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  const StatusOwner status(TF_NewStatus());
  TF_Tensor* tensor = TF_AllocateOutput(raw_, index, type, shape.data(),
                                        static_cast<int>(shape.size()), bytes, status.get());
  Tensor owner(tensor);
  if (TF_GetCode(status.get()) != TF_OK) {
    return FromTensorFlow(status.get(), "output", std::to_string(index).c_str());
  }
  return owner;
}

Result<Tensor> KernelContext::InputAsOutput(int input, int output,
                                            const std::vector<int64_t>& shape) const {
  const StatusOwner status(TF_NewStatus());
  Tensor owner(TF_ForwardInputOrAllocateOutput(raw_, &input, 1, output, shape.data(),
                                               static_cast<int>(shape.size()), nullptr,
                                               status.get()));
  if (TF_GetCode(status.get()) != TF_OK) {
    return FromTensorFlow(status.get(), "output", std::to_string(output).c_str());
  }
  return owner;
}

Status KernelContext::OutputScalar(int index, int64_t value) const {
  TSPS_ASSIGN_OR_RETURN(const Tensor tensor, Output<int64_t>(index, {}));
  *tensor.data<int64_t>() = value;
  return Status();
}

Status KernelContext::Forward(int input, int output) const {
  const StatusOwner status(TF_NewStatus());
  TF_Tensor* raw = nullptr;
  TF_GetInput(raw_, input, &raw, status.get());
  const std::unique_ptr<TF_Tensor, TensorDeleter> tensor(raw);
  if (TF_GetCode(status.get()) != TF_OK) {
    return FromTensorFlow(status.get(), "input", std::to_string(input).c_str());
  }
  TF_SetOutput(raw_, output, tensor.get(), status.get());
  if (TF_GetCode(status.get()) == TF_OK) return Status();
  return FromTensorFlow(status.get(), "output", std::to_string(output).c_str());
}

void KernelContext::Fail(const Status& status) const {
  const StatusOwner out(TF_NewStatus());
  ToTensorFlow(status, out.get());
  TF_OpKernelContext_Failure(raw_, out.get());
}

Result<bool> Attributes::Bool(const char* name) const {
  const StatusOwner status(TF_NewStatus());
  TF_Bool value = 0;
  TF_OpKernelConstruction_GetAttrBool(raw_, name, &value, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  return value != 0;
}

Result<int64_t> Attributes::Int64(const char* name) const {
  const StatusOwner status(TF_NewStatus());
  int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(raw_, name, &value, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  return value;
}

Result<int> Attributes::Int(const char* name) const {
  TSPS_ASSIGN_OR_RETURN(const int64_t value, Int64(name));
  return Narrow(value, name);
}

Result<std::string> Attributes::String(const char* name) const {
  const StatusOwner status(TF_NewStatus());
  int32_t items = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(raw_, name, &items, &bytes, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  std::string value(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(raw_, name, value.data(), value.size(), status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  return value;
}

Result<std::vector<int>> Attributes::IntList(const char* name) const {
  const StatusOwner status(TF_NewStatus());
  int32_t items = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(raw_, name, &items, &bytes, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  if (items <= 0) return std::vector<int>();
  std::vector<int64_t> values(static_cast<size_t>(items));
  TF_OpKernelConstruction_GetAttrInt64List(raw_, name, values.data(), items, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  std::vector<int> narrow;
  for (const int64_t value : values) {
    TSPS_ASSIGN_OR_RETURN(const int item, Narrow(value, name));
    narrow.push_back(item);
  }
  return narrow;
}

Result<std::vector<std::string>> Attributes::StringList(const char* name) const {
  const StatusOwner status(TF_NewStatus());
  int32_t items = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(raw_, name, &items, &bytes, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  if (items <= 0) return std::vector<std::string>();  // TensorFlow does not set `bytes` then
  const size_t n = static_cast<size_t>(items);
  std::vector<char*> texts(n);
  std::vector<size_t> lengths(n);
  std::vector<char> storage(static_cast<size_t>(bytes));
  TF_OpKernelConstruction_GetAttrStringList(raw_, name, texts.data(), lengths.data(), items,
                                            storage.data(), storage.size(), status.get());
  if (TF_GetCode(status.get()) != TF_OK) return FromTensorFlow(status.get(), "attribute", name);
  std::vector<std::string> values;
  for (size_t i = 0; i < n; ++i) values.emplace_back(texts[i], lengths[i]);
  return values;
}

void Attributes::Fail(const Status& status) const {
  const StatusOwner out(TF_NewStatus());
  ToTensorFlow(status, out.get());
  TF_OpKernelConstruction_Failure(raw_, out.get());
}

}  // namespace tsps
