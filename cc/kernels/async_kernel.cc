#include "kernels/async_kernel.h"

namespace tsps {

std::function<void()> CopyDoneCallback(TF_AsyncOpKernelDoneCallback* done) {
  // tensorflow/c/kernels.cc passes reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&done), where
  // `done` is an AsyncOpKernel::DoneCallback, a std::function<void()> (in 2.15 and 2.21).
  // tests/kernels/test_wait.py crashes on a TensorFlow where it has another type.
  return *reinterpret_cast<std::function<void()>*>(done);
}

}  // namespace tsps
