// The slot directory of a device cache: its speed, and what it saves on traces.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "core/cache/slot_directory.h"
#include "core/gradients/dedupe.h"

namespace tsps {
namespace {

using Trace = std::vector<std::vector<int64_t>>;  // unique keys of each batch

std::vector<int64_t> Unique(const std::vector<int64_t>& ids) {
  std::vector<int32_t> inverse(ids.size());
  return Dedupe({{ids.data(), ids.size(), inverse.data()}});
}

// Every `drift` batches one in 20 keys is another one from then on; 0: never.
Trace MakeTrace(size_t batches, size_t ids, int64_t rows, size_t drift) {
  Trace trace;
  for (size_t t = 0; t < batches; ++t) {
    std::vector<int64_t> batch = Unique(ZipfIds(ids, 1.05, rows, 100 + static_cast<uint32_t>(t)));
    if (drift != 0) {
      for (int64_t& key : batch) {
        const uint64_t phase = HashKey(key, 5) % (20 * drift);
        key = static_cast<int64_t>(HashKey(key, (t + phase) / (20 * drift)));
      }
    }
    trace.push_back(std::move(batch));
  }
  return trace;
}

// Hits of the best choice there is: who is needed last does not stay, or does not enter.
size_t BeladyHits(const Trace& trace, size_t slots, size_t warm) {
  std::unordered_map<int64_t, std::vector<uint32_t>> uses;
  for (size_t t = 0; t < trace.size(); ++t) {
    for (const int64_t key : trace[t]) uses[key].push_back(static_cast<uint32_t>(t));
  }
  std::unordered_map<int64_t, size_t> seen;
  std::unordered_map<int64_t, uint32_t> held;      // and when they are needed next
  std::set<std::pair<uint32_t, int64_t>> by_next;  // of them
  size_t hits = 0;
  for (size_t t = 0; t < trace.size(); ++t) {
    std::vector<std::pair<uint32_t, int64_t>> missing;
    for (const int64_t key : trace[t]) {
      const std::vector<uint32_t>& its = uses[key];
      const size_t next = ++seen[key];
      const uint32_t when = next < its.size() ? its[next] : UINT32_MAX;
      const auto found = held.find(key);
      if (found == held.end()) {
        missing.emplace_back(when, key);
        continue;
      }
      hits += t >= warm;
      by_next.erase({found->second, key});
      found->second = when;
      by_next.insert({when, key});
    }
    for (const auto& [when, key] : missing) {
      if (held.size() == slots) {
        const auto last = std::prev(by_next.end());
        if (last->first <= when) continue;
        held.erase(last->second);
        by_next.erase(last);
      }
      held[key] = when;
      by_next.insert({when, key});
    }
  }
  return hits;
}

struct Moved {
  size_t keys = 0, hits = 0, entered = 0, written = 0;
};

Moved Simulate(const Trace& trace, const SlotDirectory::Options& options, size_t ahead,
               size_t warm) {
  SlotDirectory directory(options);
  Moved moved;
  size_t staged = 0;
  for (size_t t = 0; t < trace.size(); ++t) {
    for (; ahead > 0 && staged < trace.size() && staged <= t + ahead; ++staged) {
      directory.Stage(staged, trace[staged].data(), trace[staged].size());
    }
    if (ahead > 0) directory.Match(t);
    auto plan = directory.MakePlan(trace[t].data(), trace[t].size());
    Check(plan.status());
    Check(directory.Commit(*plan, trace[t].data()));
    if (t < warm) continue;
    const size_t held = trace[t].size() -
                        static_cast<size_t>(std::count(plan->slots.begin(), plan->slots.end(), -1));
    moved.keys += trace[t].size();
    moved.hits += held - plan->entering.size();
    moved.entered += plan->entering.size();
    moved.written += plan->victims.size();
  }
  return moved;
}

void BenchTrace(const char* name, const Trace& trace, size_t rows) {
  const size_t warm = trace.size() / 2;
  std::printf("\n%s: %zu batches, hits and bytes of the last %zu; %zu unique keys in the first\n",
              name, trace.size(), trace.size() - warm, trace[0].size());
  std::printf(
      "  rows between host and device per unique key, of 2 without a cache: a missing key's "
      "row down\n  and its gradient up, or the row with one slot down; a victim's with its "
      "slot up\n");
  for (const size_t percent : {10, 20}) {
    const auto slots = static_cast<uint32_t>(rows * percent / 100);
    const size_t best = BeladyHits(trace, slots, warm);
    const auto line = [&](const std::string& what, SlotDirectory::Policy policy, size_t ahead) {
      SlotDirectory::Options options;
      options.slots = slots;
      options.policy = policy;
      const Moved moved = Simulate(trace, options, ahead, warm);
      const size_t missed = moved.keys - moved.hits;
      // In rows: an entering key's row comes in the forward pass, and again with its slot.
      const size_t all = missed + 2 * moved.entered + (missed - moved.entered) + 2 * moved.written;
      std::printf(
          "  %2zu %% of the rows  %-22s %.3f of the bytes, hits %.3f of keys, %.3f of "
          "Belady's; %.3f of misses enter\n",
          percent, what.c_str(), static_cast<double>(all) / (2.0 * moved.keys),
          static_cast<double>(moved.hits) / moved.keys, static_cast<double>(moved.hits) / best,
          static_cast<double>(moved.entered) / std::max<size_t>(missed, 1));
    };
    for (const size_t ahead : {0, 1, 2, 4, 8}) {
      line("admission, " + std::to_string(ahead) + " ahead", SlotDirectory::Policy::kAdmission,
           ahead);
    }
    line("lru", SlotDirectory::Policy::kLru, 0);
    line("lru, 8 ahead", SlotDirectory::Policy::kLru, 8);
  }
}

void BenchSpeed(SlotDirectory::Policy policy, const char* name) {
  using Clock = std::chrono::steady_clock;
  constexpr uint32_t kSlots = 10000000;
  SlotDirectory::Options options;
  options.slots = kSlots;
  options.policy = policy;
  SlotDirectory directory(options);
  constexpr size_t kBatch = 1000000, kBatches = 60, kWarm = 40;
  std::vector<double> plans, commits, finds;
  size_t hits = 0, keys = 0;
  for (size_t t = 0; t < kBatches; ++t) {
    const std::vector<int64_t> batch =
        Unique(ZipfIds(kBatch, 1.05, 100000000, static_cast<uint32_t>(t)));
    std::vector<int32_t> slots(batch.size());
    const auto start = Clock::now();
    directory.Find(batch.data(), batch.size(), slots.data());
    const auto found = Clock::now();
    auto plan = directory.MakePlan(batch.data(), batch.size());
    Check(plan.status());
    const auto planned = Clock::now();
    Check(directory.Commit(*plan, batch.data()));
    const auto committed = Clock::now();
    if (t < kWarm) continue;
    const auto seconds = [](auto d) { return std::chrono::duration<double>(d).count(); };
    keys += batch.size();
    hits += batch.size() - static_cast<size_t>(std::count(slots.begin(), slots.end(), -1));
    finds.push_back(seconds(found - start) / batch.size());
    plans.push_back(seconds(planned - found) / batch.size());
    commits.push_back(seconds(committed - planned) / batch.size());
  }
  double sum[3] = {};
  int i = 0;
  for (auto* times : {&finds, &plans, &commits}) {
    sum[i++] = std::accumulate(times->begin(), times->end(), 0.0) / times->size();
  }
  std::printf(
      "%-10s 10M slots, %.1f bytes per slot, %zu keys per batch, %.2f hits: find %.1f, plan "
      "%.1f, commit %.1f ns per key: %.1f M keys/s for plan and commit, %.1f with find\n",
      name, static_cast<double>(directory.bytes()) / kSlots, keys / finds.size(),
      static_cast<double>(hits) / keys, 1e9 * sum[0], 1e9 * sum[1], 1e9 * sum[2],
      1e-6 / (sum[1] + sum[2]), 1e-6 / (sum[0] + sum[1] + sum[2]));
}

}  // namespace

void BenchCache(const BenchOptions& options) {
  BenchSpeed(SlotDirectory::Policy::kAdmission, "admission");
  BenchSpeed(SlotDirectory::Policy::kLru, "lru");
  const size_t ids = options.ids;
  BenchTrace("Zipf(1.05)", MakeTrace(160, ids, options.rows, 0), options.rows);
  BenchTrace("drifting", MakeTrace(160, ids, options.rows, 10), options.rows);
}

}  // namespace tsps
