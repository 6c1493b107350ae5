// Registers C++ classes as TensorFlow kernels.
//
// A kernel class has `Status Init(const Attributes&)`, which runs once, and `Status
// Compute(KernelContext&)`, which several threads may run at once.
#ifndef TFSPS_KERNELS_KERNEL_H_
#define TFSPS_KERNELS_KERNEL_H_

#include <tensorflow/c/kernels.h>

#include <exception>
#include <memory>
#include <new>

#include "kernels/tensors.h"

namespace tsps {

// Runs `body`, and converts exceptions to errors: no exception may reach TensorFlow.
template <typename Body>
Status NoThrow(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error(
        Code::kResourceExhausted,
        "tf_sparse_ps: a kernel could not allocate memory. Free memory on this machine, or "
        "make batches smaller");
  } catch (const std::exception& error) {
    return Error(Code::kInternal, "tf_sparse_ps: ", error.what());
  }
}

template <typename Kernel>
void* CreateKernel(TF_OpKernelConstruction* raw) {
  const Attributes attributes(raw);
  auto kernel = std::make_unique<Kernel>();
  const Status status = NoThrow([&] { return kernel->Init(attributes); });
  if (status.ok()) return kernel.release();
  attributes.Fail(status);
  return nullptr;
}

template <typename Kernel>
void DeleteKernel(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

template <typename Kernel>
void ComputeKernel(void* kernel, TF_OpKernelContext* raw) {
  KernelContext context(raw);
  const Status status = NoThrow([&] { return static_cast<Kernel*>(kernel)->Compute(context); });
  if (!status.ok()) context.Fail(status);
}

// Registers a kernel for the CPU with TensorFlow. Aborts on failure, which only a misspelt name of
// an op can cause.
void RegisterBuilder(const char* op, TF_KernelBuilder* builder);

template <typename Kernel>
void RegisterKernel(const char* op) {
  RegisterBuilder(op, TF_NewKernelBuilder(op, "CPU", &CreateKernel<Kernel>, &ComputeKernel<Kernel>,
                                          &DeleteKernel<Kernel>));
}

// A kernel without attributes that calls a function.
template <Status (*kCompute)(const KernelContext&)>
class FunctionKernel {
 public:
  Status Init(const Attributes&) { return Status(); }
  Status Compute(const KernelContext& context) { return kCompute(context); }
};

// Each registers the kernels of one file. registration.cc calls them when the library is loaded.
void RegisterLookupKernels();
void RegisterCounterKernels();
void RegisterPooledKernels();
void RegisterRowsKernels();
void RegisterReduceKernels();
void RegisterOccurrenceKernels();
void RegisterDenseKernels();
void RegisterExchangeKernels();
void RegisterRingKernels();
void RegisterPullKernels();
void RegisterPullAheadKernels();
void RegisterWireKernels();
void RegisterApplyKernels();
void RegisterAgreementKernels();
void RegisterDeviceCacheKernels();
void RegisterCacheStagingKernels();
void RegisterCacheDevicesKernels();
void RegisterSlowLinkKernels();
void RegisterDeviceCacheStepKernels();
void RegisterCacheFlushKernels();
void RegisterTimelineKernels();
void RegisterReadyTimesKernels();
void RegisterWaitKernels();
void RegisterAdminKernels();

}  // namespace tsps

#endif  // TFSPS_KERNELS_KERNEL_H_
