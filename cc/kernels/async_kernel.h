// Asynchronous kernels, which return before they are done.
//
// The C API passes the done callback as a pointer to a std::function on the caller's stack. The
// function is destroyed when the compute function returns (2.15 to 2.21), so calling it later
// through TF_RunAsyncOpKernelDoneCallback crashes. The adapter copies it before that.
#ifndef TFSPS_KERNELS_ASYNC_KERNEL_H_
#define TFSPS_KERNELS_ASYNC_KERNEL_H_

#include <functional>

#include "kernels/kernel.h"

namespace tsps {

// The callback of an asynchronous kernel, which it calls once, from any thread, when it is done. An
// error fails the op. The kernel's KernelContext is valid until the call.
using Done = std::function<void(const Status&)>;

using AsyncCompute = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);

// Returns a copy of TensorFlow's callback.
std::function<void()> CopyDoneCallback(TF_AsyncOpKernelDoneCallback* done);

template <typename Kernel>
void ComputeAsyncKernel(void* kernel, TF_OpKernelContext* raw,
                        TF_AsyncOpKernelDoneCallback* raw_done) {
  const KernelContext context(raw);
  const Done done = [context, finish = CopyDoneCallback(raw_done)](const Status& status) {
    if (!status.ok()) context.Fail(status);
    finish();
  };
  static_cast<Kernel*>(kernel)->ComputeAsync(context, done);
}

// Registers an asynchronous kernel. `Kernel` has Init, and `void ComputeAsync(const KernelContext&,
// const Done&)`, which must not block.
template <typename Kernel>
void RegisterAsyncKernel(const char* op) {
  RegisterBuilder(op, TF_NewAsyncKernelBuilder(op, "CPU", &CreateKernel<Kernel>,
                                               &ComputeAsyncKernel<Kernel>, &DeleteKernel<Kernel>));
}

}  // namespace tsps

#endif  // TFSPS_KERNELS_ASYNC_KERNEL_H_
