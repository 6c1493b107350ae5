// Kernels that return before they are done.
//
// The C API passes the done callback as a pointer to a std::function on the caller's stack, which
// is gone when the compute function returns (2.15 to 2.21): calling it later through
// TF_RunAsyncOpKernelDoneCallback crashes. The adapter copies it while it is there.
#ifndef TFSPS_KERNELS_ASYNC_KERNEL_H_
#define TFSPS_KERNELS_ASYNC_KERNEL_H_

#include <functional>

#include "kernels/kernel.h"

namespace tsps {

// What an asynchronous kernel calls once, from any thread, when it is done; an error fails the op.
// The KernelContext it was started with is valid until then.
using Done = std::function<void(const Status&)>;

using AsyncCompute = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);

// Copies TensorFlow's callback.
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

// `Kernel` has Init, and `void ComputeAsync(const KernelContext&, const Done&)`, which does not
// block.
template <typename Kernel>
void RegisterAsyncKernel(const char* op) {
  RegisterBuilder(op, TF_NewAsyncKernelBuilder(op, "CPU", &CreateKernel<Kernel>,
                                               &ComputeAsyncKernel<Kernel>, &DeleteKernel<Kernel>));
}

}  // namespace tsps

#endif  // TFSPS_KERNELS_ASYNC_KERNEL_H_
