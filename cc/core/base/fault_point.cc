#include "core/base/fault_point.h"

#ifdef TFSPS_FAULT_POINTS

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace tsps {
namespace {

struct Plan {
  std::string kill_name;
  long kill_at = 0;
  long delay_us = 0;
  std::string off;

  Plan() {
    if (const char* kill_spec = getenv("TFSPS_FAULT_KILL")) {
      const char* colon = strrchr(kill_spec, ':');
      kill_name = colon ? std::string(kill_spec, colon) : kill_spec;
      kill_at = colon ? atol(colon + 1) : 1;
    }
    if (const char* delay = getenv("TFSPS_FAULT_DELAY")) delay_us = atol(delay);
    if (const char* mechanism = getenv("TFSPS_FAULT_OFF")) off = mechanism;
  }
};

// Returns the plan of this process. A forked child reads its own, because its test has set other
// environment variables.
const Plan& ThePlan() {
  static std::mutex mutex;
  static std::atomic<const Plan*> plan{nullptr};
  static std::atomic<int> owner{0};
  if (owner.load(std::memory_order_acquire) != getpid()) {
    std::lock_guard<std::mutex> lock(mutex);
    if (owner.load() != getpid()) {
      plan.store(new Plan);  // the old plan is never freed: another thread may use it
      owner.store(getpid(), std::memory_order_release);
    }
  }
  return *plan.load();
}

struct Failure {
  std::mutex mutex;
  std::string name;
  long n = 0, passages = 0;
  int error = 0;
};

Failure& TheFailure() {
  static Failure* const failure = new Failure();
  return *failure;
}

}  // namespace

void FailAt(const char* name, long n, int error) {
  Failure& failure = TheFailure();
  const std::lock_guard<std::mutex> lock(failure.mutex);
  failure.name = name;
  failure.n = n;
  failure.passages = 0;
  failure.error = error;
}

bool Fails(const char* name) {
  PassFaultPoint(name);
  Failure& failure = TheFailure();
  const std::lock_guard<std::mutex> lock(failure.mutex);
  if (failure.name != name || ++failure.passages < failure.n) return false;
  errno = failure.error;
  return true;
}

void PassFaultPoint(const char* name) {
  const Plan& plan = ThePlan();
  static std::atomic<long> passages{0};
  if (!plan.kill_name.empty() && plan.kill_name == name && ++passages == plan.kill_at) {
    kill(getpid(), SIGKILL);
  }
  if (plan.delay_us > 0) {
    timespec pause = {plan.delay_us / 1000000, (plan.delay_us % 1000000) * 1000};
    nanosleep(&pause, nullptr);
  }
}

bool FaultOff(const char* mechanism) { return ThePlan().off == mechanism; }

}  // namespace tsps

#endif  // TFSPS_FAULT_POINTS
