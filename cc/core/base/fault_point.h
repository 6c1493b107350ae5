// Fault points: named places between the steps of a multi-step write where a test kills or delays
// the process.
//
// Compiled out unless TFSPS_FAULT_POINTS is defined (make crash). Then the environment decides:
//   TFSPS_FAULT_KILL=name:n    SIGKILL at the n-th passage of `name`
//   TFSPS_FAULT_DELAY=us       sleep that long at every passage, so that outside kills and readers
//                              hit the windows
//   TFSPS_FAULT_OFF=mechanism  controls that must fail: recovery that undoes nothing, readers that
//                              check nothing, and others
// And a test in the same process lets calls of the system fail: FailAt.
#ifndef TFSPS_CORE_BASE_FAULT_POINT_H_
#define TFSPS_CORE_BASE_FAULT_POINT_H_

#ifdef TFSPS_FAULT_POINTS

namespace tsps {
void PassFaultPoint(const char* name);
bool FaultOff(const char* mechanism);
// From its n-th passage on (1, 2, ...) what is tried at `name` fails with `error`, of errno.h,
// until FailAt("", 0, 0).
void FailAt(const char* name, long n, int error);
// True, with errno set, if it fails.
bool Fails(const char* name);
}  // namespace tsps
#define TSPS_FAULT_POINT(name) ::tsps::PassFaultPoint(name)
#define TSPS_FAULT_OFF(mechanism) ::tsps::FaultOff(mechanism)
#define TSPS_FAULT_FAILS(name) ::tsps::Fails(name)

#else

#define TSPS_FAULT_POINT(name) static_cast<void>(0)
#define TSPS_FAULT_OFF(mechanism) false
#define TSPS_FAULT_FAILS(name) false

#endif  // TFSPS_FAULT_POINTS

#endif  // TFSPS_CORE_BASE_FAULT_POINT_H_
