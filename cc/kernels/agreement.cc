// TspsFacts, TspsStatement, TspsExplainDifference, TspsAllowObjections and TspsRaiseObjection:
// before a step, the ranks check that they agree on everything that must be equal on all of them.
//
// Each rank has a list of facts, in the same order. The digest of the list travels with an exchange
// that the step needs anyway. The facts themselves travel only if digests differ, to name the fact
// that differs.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/step.h"

namespace tsps {
namespace {

// The digest of a variable covers all of its bytes up to kWhole bytes, and kBlocks blocks of
// kBlock bytes of a larger one. The blocks change in every step, so a persistent difference is
// found after some steps, and a difference of the whole variable at once.
constexpr size_t kWhole = 1024, kBlock = 64, kBlocks = 16;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 32);
}

uint64_t MixBytes(uint64_t hash, const uint8_t* bytes, size_t n) {
  for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof(word), n - at));
    hash = Mix(hash, word);
  }
  return hash;
}

uint64_t DigestOf(const Tensor& values, uint64_t seed) {
  const size_t n = values.bytes();
  const uint8_t* const bytes = values.data<const uint8_t>();
  uint64_t hash = Mix(seed, n);
  if (n <= kWhole) return MixBytes(hash, bytes, n);
  const size_t blocks = n / kBlock, stride = blocks / kBlocks;
  for (size_t b = 0; b < kBlocks; ++b) {
    const size_t at = HashKey(static_cast<int64_t>(b), seed) % stride + b * stride;
    hash = MixBytes(hash, bytes + at * kBlock, kBlock);
  }
  return MixBytes(hash, bytes + n - kBlock, kBlock);
}

class FactsKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(reals_, attributes.Int("F"));
    TSPS_ASSIGN_OR_RETURN(values_, attributes.Int("n_values"));
    return Status();
  }

  // Inputs: seed, numbers, reals F, values W. Outputs: facts, digest.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int64_t seed, context.Scalar<int64_t>(0, "seed"));
    TSPS_ASSIGN_OR_RETURN(const Tensor numbers, context.Input(1, 1, "numbers"));
    std::vector<int64_t> facts(numbers.data<int64_t>(), numbers.data<int64_t>() + numbers.size());
    for (int i = 0; i < reals_; ++i) {
      TSPS_ASSIGN_OR_RETURN(const Tensor reals, context.Input(2 + i));
      for (size_t j = 0; j < reals.size(); ++j) {
        uint32_t bits;
        std::memcpy(&bits, reals.data<float>() + j, sizeof(bits));
        facts.push_back(bits);
      }
    }
    for (int i = 0; i < values_; ++i) {
      TSPS_ASSIGN_OR_RETURN(const Tensor values, context.Input(2 + reals_ + i));
      facts.push_back(static_cast<int64_t>(DigestOf(values, static_cast<uint64_t>(seed))));
    }
    uint64_t digest = facts.size();
    for (const int64_t fact : facts) digest = Mix(digest, static_cast<uint64_t>(fact));
    TSPS_RETURN_IF_ERROR(context.OutputVector(0, facts));
    return context.OutputScalar(1, static_cast<int64_t>(HashKey(static_cast<int64_t>(digest), 0)));
  }

 private:
  int reals_ = 0, values_ = 0;
};

class StatementKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, digest. Outputs: statement.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t digest, context.Scalar<int64_t>(1, "digest"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    Status objection = owner->TakeObjection();
    const std::shared_ptr<NodeExchange> exchange = owner->exchange();
    if (!objection.ok() && exchange != nullptr) objection = OfRank(exchange->rank(), objection);
    return context.OutputVector(0, EncodeStatement(static_cast<uint64_t>(digest), objection));
  }
};

class ExplainDifferenceKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(names_, attributes.StringList("names"));
    TSPS_ASSIGN_OR_RETURN(shown_, attributes.String("shown"));
    TSPS_ASSIGN_OR_RETURN(remedies_, attributes.StringList("remedies"));
    TSPS_ASSIGN_OR_RETURN(remedy_of_, attributes.IntList("remedy_of"));
    bool fits = shown_.size() == names_.size() && remedy_of_.size() == names_.size();
    for (const int remedy : remedy_of_) {
      fits = fits && remedy >= 0 && static_cast<size_t>(remedy) < remedies_.size();
    }
    if (fits) return Status();
    return Error(Code::kInvalidArgument, "shown and remedy_of must have one item for each of the ",
                 names_.size(),
                 " names, and remedy_of must be valid positions in remedies. Received: ",
                 shown_.size(), " and ", remedy_of_.size(), " items");
  }

  // Inputs: verdict, facts of all ranks, one rank after another. Outputs: explained.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor verdict, context.Input(0, 1, "verdict"));
    TSPS_ASSIGN_OR_RETURN(const Tensor facts, context.Input(1, 1, "facts"));
    const Status before = DecodeVerdicts(verdict.data<uint8_t>(), verdict.size());
    return context.OutputVector(0, EncodeVerdict(Explain(before, facts)));
  }

 private:
  static constexpr size_t kShown = 3;

  std::string Shown(size_t fact, int64_t value) const {
    char text[32];
    if (shown_[fact] == 'i') {
      std::snprintf(text, sizeof(text), "%" PRId64, value);
    } else {
      const auto bits = static_cast<uint32_t>(value);
      float real;
      std::memcpy(&real, &bits, sizeof(real));
      std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(real));
    }
    return text;
  }

  std::string Difference(size_t fact, size_t rank, int64_t of_rank_0, int64_t of_rank) const {
    std::string text = names_[fact];
    if (shown_[fact] == 'h') {
      return text + " on rank " + std::to_string(rank) + " is not that of rank 0";
    }
    return text + ": rank 0 has " + Shown(fact, of_rank_0) + ", rank " + std::to_string(rank) +
           " has " + Shown(fact, of_rank);
  }

  Status Explain(const Status& verdict, const Tensor& facts) const {
    const size_t n = names_.size();
    if (verdict.code() != Code::kFailedPrecondition || n == 0) return verdict;
    if (facts.size() % n != 0) {
      return Error(verdict.code(), verdict.message(), ": all ranks together have ", facts.size(),
                   " facts, and this rank has ", n,
                   ". No rank has made this step. Every rank must run the same program, with the "
                   "same options");
    }
    const int64_t* const all = facts.data<int64_t>();
    std::string text;
    size_t differences = 0, remedy = 0;
    for (size_t fact = 0; fact < n; ++fact) {
      for (size_t rank = 1; rank < facts.size() / n; ++rank) {
        const int64_t value = all[rank * n + fact];
        if (value == all[fact]) continue;
        if (differences == 0) remedy = static_cast<size_t>(remedy_of_[fact]);
        if (differences < kShown) {
          if (differences > 0) text += "; ";
          text += Difference(fact, rank, all[fact], value);
        }
        ++differences;
        break;
      }
    }
    if (differences == 0) return verdict;
    std::string more;
    if (differences > kShown) more = " (and " + std::to_string(differences - kShown) + " more)";
    return Error(verdict.code(), "the ranks of this job would train apart, so no rank has made ",
                 "this step: ", text, more, ". ", remedies_[remedy]);
  }

  std::vector<std::string> names_, remedies_;
  std::string shown_;
  std::vector<int> remedy_of_;
};

class RaiseObjectionKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    return owner->TakeObjection();
  }
};

class AllowObjectionsKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, allowed.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t allowed, context.Scalar<int64_t>(1, "allowed"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    owner->AllowObjections(allowed != 0);
    return Status();
  }
};

}  // namespace

void RegisterAgreementKernels() {
  RegisterKernel<FactsKernel>("TspsFacts");
  RegisterKernel<StatementKernel>("TspsStatement");
  RegisterKernel<ExplainDifferenceKernel>("TspsExplainDifference");
  RegisterKernel<AllowObjectionsKernel>("TspsAllowObjections");
  RegisterKernel<RaiseObjectionKernel>("TspsRaiseObjection");
}

}  // namespace tsps
