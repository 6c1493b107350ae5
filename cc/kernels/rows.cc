// The parts of a lookup as separate ops: TspsUnique, and TspsGatherRows or TspsPoolRows, which take
// rows as inputs, with TspsPoolRowsWeightGrad. TspsReadRows (lookup.cc) can come between.
#include <string>
#include <utility>
#include <vector>

#include "core/gradients/bags.h"
#include "core/gradients/pooled_weight_gradient.h"
#include "core/group/row_copy.h"
#include "kernels/features.h"
#include "kernels/kernel.h"
#include "kernels/pooled_gradients.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

class UniqueKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, false); }

  // Inputs: ids N. Outputs: inverses N, keys T.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("unique");
    const auto name = [](size_t t) { return "table " + std::to_string(t) + " of the call"; };
    UniqueKeys unique;
    return unique.Dedupe(context, features_, features_.n, 0, name, *SharedExecutor());
  }

 private:
  Features features_;
};

// The rows of the unique keys of each table, which are inputs of the op.
struct InputRows {
  std::vector<Tensor> rows;

  // Reads rows from input `first` on, and keys from input `keys` on.
  Status Init(const KernelContext& context, const Features& features, int first, int keys) {
    for (int t = 0; t < features.tables; ++t) {
      TSPS_ASSIGN_OR_RETURN(Tensor table_rows, context.Input(first + t, 2, "rows"));
      TSPS_ASSIGN_OR_RETURN(const Tensor table_keys, context.Keys(keys + t));
      if (table_rows.dim(0) != static_cast<int64_t>(table_keys.size()) || table_rows.dim(1) < 1) {
        return Error(Code::kInvalidArgument, "table ", t, " of the call has ", table_keys.size(),
                     " keys; expected a row for each, not empty. Received: rows of shape ",
                     ShapeString(table_rows.shape()));
      }
      rows.push_back(std::move(table_rows));
    }
    return Status();
  }
  // Refuses carriers (inputs `carriers` on) whose width is not that of the rows.
  Status CheckWidths(const KernelContext& context, int carriers) const {
    for (size_t t = 0; t < rows.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(const Tensor carrier, context.Input(carriers + static_cast<int>(t)));
      if (carrier.rank() != 2 || carrier.dim(1) != rows[t].dim(1)) {
        return Error(Code::kInvalidArgument, "the carrier of table ", t,
                     " of the call must have shape [0,", rows[t].dim(1),
                     "]. Received: ", ShapeString(carrier.shape()));
      }
    }
    return Status();
  }
  // Returns the address of each row of each table.
  std::vector<std::vector<const float*>> Addresses() const {
    std::vector<std::vector<const float*>> addresses;
    for (const Tensor& matrix : rows) {
      std::vector<const float*> pointers(static_cast<size_t>(matrix.dim(0)));
      for (size_t i = 0; i < pointers.size(); ++i) {
        pointers[i] = matrix.data<float>() + i * static_cast<size_t>(matrix.dim(1));
      }
      addresses.push_back(std::move(pointers));
    }
    return addresses;
  }
};

class GatherRowsKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, false); }

  // Inputs: inverses N, rows T, keys T, carriers T. Outputs: gathered N.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("gather rows");
    const int n = features_.n, t = features_.tables;
    InputRows input;
    TSPS_RETURN_IF_ERROR(input.Init(context, features_, n, n + t));
    TSPS_RETURN_IF_ERROR(input.CheckWidths(context, n + 2 * t));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(const Tensor inverse, context.Input(f));
      const Tensor& rows = features_.In(input.rows, f);
      TSPS_RETURN_IF_ERROR(CheckInverse(inverse, static_cast<size_t>(rows.dim(0)), f));
      std::vector<int64_t> shape = inverse.shape();
      shape.push_back(rows.dim(1));
      TSPS_ASSIGN_OR_RETURN(const Tensor output, context.Output<float>(f, shape));
      const float* const from = rows.data<float>();
      const auto dim = static_cast<size_t>(rows.dim(1));
      const int32_t* const positions = inverse.data<int32_t>();
      CopyRows([&](size_t i) { return from + static_cast<size_t>(positions[i]) * dim; },
               PlaneType::kFloat32, dim, inverse.size(), output.data<float>(), *executor);
    }
    return Status();
  }

 private:
  Features features_;
};

class PoolRowsKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, true); }

  // Inputs: inverses N, splits N, weights N, rows T, keys T, carriers T. Outputs: pooled N.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("pool rows");
    const int n = features_.n, t = features_.tables;
    InputRows input;
    TSPS_RETURN_IF_ERROR(input.Init(context, features_, 3 * n, 3 * n + t));
    TSPS_RETURN_IF_ERROR(input.CheckWidths(context, 3 * n + 2 * t));
    const std::vector<std::vector<const float*>> addresses = input.Addresses();
    const std::shared_ptr<Executor> executor = SharedExecutor();
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(const Tensor inverse, context.Input(f, 1, "inverses"));
      const Tensor& rows = features_.In(input.rows, f);
      TSPS_RETURN_IF_ERROR(CheckInverse(inverse, static_cast<size_t>(rows.dim(0)), f));
      TSPS_ASSIGN_OR_RETURN(Bags bags,
                            Bags::Read(context, features_, f, n + f, 2 * n + f, inverse.size()));
      bags.span.inverse = inverse.data<int32_t>();
      TSPS_ASSIGN_OR_RETURN(
          const Tensor output,
          context.Output<float>(f, {static_cast<int64_t>(bags.span.n_bags), rows.dim(1)}));
      PoolBags(bags.span, features_.In(addresses, f).data(), static_cast<size_t>(rows.dim(1)),
               output.data<float>(), *executor);
    }
    return Status();
  }

 private:
  Features features_;
};

class PoolRowsWeightGradKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, true); }

  // Inputs: those of PooledGradients, then rows T. Outputs: weight_grads N.
  Status Compute(const KernelContext& context) {
    const int n = features_.n, t = features_.tables;
    PooledGradients call;
    TSPS_RETURN_IF_ERROR(call.Init(context, features_));
    InputRows input;
    TSPS_RETURN_IF_ERROR(input.Init(context, features_, 4 * n + t, 4 * n));
    const std::vector<std::vector<const float*>> addresses = input.Addresses();
    const std::shared_ptr<Executor> executor = SharedExecutor();
    for (int f = 0; f < n; ++f) {
      const size_t i = static_cast<size_t>(f);
      const int64_t dim = features_.In(input.rows, f).dim(1);
      TSPS_RETURN_IF_ERROR(call.Check(features_, f, dim));
      TSPS_ASSIGN_OR_RETURN(const Tensor output,
                            context.Output<float>(f, call.bags[i].weights.shape()));
      if (call.bags[i].span.weights == nullptr) continue;
      PooledWeightGradient(call.bags[i].span, features_.In(addresses, f).data(),
                           static_cast<size_t>(dim), call.grads[i].data<float>(),
                           output.data<float>(), *executor);
    }
    return Status();
  }

 private:
  Features features_;
};

}  // namespace

void RegisterRowsKernels() {
  RegisterKernel<UniqueKernel>("TspsUnique");
  RegisterKernel<GatherRowsKernel>("TspsGatherRows");
  RegisterKernel<PoolRowsKernel>("TspsPoolRows");
  RegisterKernel<PoolRowsWeightGradKernel>("TspsPoolRowsWeightGrad");
}

}  // namespace tsps
