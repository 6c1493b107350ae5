#include "kernels/async_kernel.h"

namespace tsps {

std::function<void()> CopyDoneCallback(TF_AsyncOpKernelDoneCallback* done) {
  // tensorflow/c/kernels.cc passes reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&done), where
  // done is AsyncOpKernel::DoneCallback, a std::function<void()>; read on 2.15 and 2.21, and
  // tests/kernels/test_wait.py would crash on a TensorFlow where it is something else.
  return *reinterpret_cast<std::function<void()>*>(done);
}

}  // namespace tsps
