// TspsPack and TspsUnpackMerge: sparse gradients to and from the bytes that travel (core/wire.h).
#include "core/wire.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/gradients.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class PackKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(const std::string wire, attributes.String("wire"));
    TSPS_ASSIGN_OR_RETURN(type_, WireTypeFromName(wire));
    return Status();
  }

  // Inputs: keys T, grads T, counts T. Outputs: buffer.
  Status Compute(const KernelContext& context) {
    GradientInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, tables_, /*with_counts=*/true));
    std::vector<WireSet> sets;
    for (const TableSets& table : inputs.tables) {
      const GradientSet& set = table.sets.front();
      sets.push_back({set.keys, set.counts, set.rows, set.n, table.dim});
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    TSPS_ASSIGN_OR_RETURN(const WirePacker packer, WirePacker::Create(sets, type_, *executor));
    const size_t size = PaddedBytes(packer.bytes());
    TSPS_ASSIGN_OR_RETURN(const Tensor buffer,
                          context.Output<uint8_t>(0, {static_cast<int64_t>(size)}));
    packer.Write(buffer.data<uint8_t>(), size, *executor);
    ProcessWireCounters().bytes_packed.fetch_add(size, std::memory_order_relaxed);
    return Status();
  }

 private:
  int tables_ = 0;
  WireType type_ = WireType::kFloat32;
};

class UnpackMergeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: buffers (padded, one after another), world_size. Outputs: keys T, grads T, counts T.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor buffers, context.Input(0, 1, "buffers"));
    TSPS_ASSIGN_OR_RETURN(const int32_t world_size, context.Scalar<int32_t>(1, "world_size"));
    ProcessWireCounters().bytes_unpacked.fetch_add(buffers.size(), std::memory_order_relaxed);
    std::vector<WireReader> readers;
    for (size_t at = 0; at < buffers.size();) {
      TSPS_ASSIGN_OR_RETURN(WireReader reader, WireReader::Open(buffers.data<const uint8_t>() + at,
                                                                buffers.size() - at));
      if (reader.n_tables() != static_cast<size_t>(tables_)) {
        return Error(Code::kInvalidArgument, "sender ", readers.size(), " sent gradients of ",
                     reader.n_tables(), " tables. Expected: ", tables_);
      }
      at += PaddedBytes(reader.bytes());
      readers.push_back(std::move(reader));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<size_t> sizes(static_cast<size_t>(tables_));
    for (const WireReader& reader : readers) {
      for (size_t t = 0; t < sizes.size(); ++t) sizes[t] += reader.n(t);
    }
    std::vector<std::vector<Unpacked>> held(sizes.size());  // [table][sender]; the sets' arrays
    std::vector<TableSets> tables(sizes.size());
    std::vector<Status> statuses(sizes.size());
    ForEachItem(sizes, *executor, [&](size_t t) {
      statuses[t] = Unpack(readers, t, &held[t], &tables[t], *executor);
    });
    TSPS_RETURN_IF_ERROR(FirstError(statuses));
    return MergeIntoOutputs(context, tables, reduction_, world_size, *executor);
  }

 private:
  struct Unpacked {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::unique_ptr<float[]> rows;
  };

  static Status Unpack(const std::vector<WireReader>& readers, size_t t,
                       std::vector<Unpacked>* held, TableSets* table, Executor& executor) {
    if (!readers.empty()) table->dim = readers.front().dim(t);
    for (size_t s = 0; s < readers.size(); ++s) {
      const WireReader& reader = readers[s];
      if (reader.dim(t) != table->dim) {
        return Error(Code::kInvalidArgument, "sender ", s, " sent rows of ", reader.dim(t),
                     " floats for table ", t, ", sender 0 of ", table->dim);
      }
      const size_t n = reader.n(t);
      Unpacked one{std::vector<int64_t>(n), std::vector<int32_t>(n),
                   std::unique_ptr<float[]>(new float[n * table->dim])};
      TSPS_RETURN_IF_ERROR(reader.Keys(t, one.keys.data()));
      TSPS_RETURN_IF_ERROR(reader.Counts(t, one.counts.data()));
      reader.Rows(t, one.rows.get(), executor);
      table->sets.push_back({one.keys.data(), one.counts.data(), one.rows.get(), n});
      held->push_back(std::move(one));
    }
    return Status();
  }

  int tables_ = 0;
  Reduction reduction_ = Reduction::kSum;
};

}  // namespace

void RegisterWireKernels() {
  RegisterKernel<PackKernel>("TspsPack");
  RegisterKernel<UnpackMergeKernel>("TspsUnpackMerge");
}

}  // namespace tsps
