// Fault points: named places between the parts of a write, where a test kills or delays the
// process.
//
// They are compiled only if TFSPS_FAULT_POINTS is defined (make crash). Then environment variables
// decide what happens:
//   TFSPS_FAULT_KILL=name:n    sends SIGKILL at the n-th passage of `name`
//   TFSPS_FAULT_DELAY=us       sleeps that long at every passage, so that kills and readers of
//                              other processes hit the windows in between
//   TFSPS_FAULT_OFF=mechanism  disables a mechanism, for controls that must fail: recovery then
//                              undoes nothing, or readers check nothing
// A test can also make system calls of its own process fail (FailAt).
#ifndef TFSPS_CORE_BASE_FAULT_POINT_H_
#define TFSPS_CORE_BASE_FAULT_POINT_H_

#ifdef TFSPS_FAULT_POINTS

namespace tsps {
// Kills or delays the process if the environment says so for this name.
void PassFaultPoint(const char* name);
// Returns whether the environment disables this mechanism.
bool FaultOff(const char* mechanism);
// Lets the operation `name` fail with `error`, a number of errno.h, from its n-th passage on (1, 2,
// ...), until FailAt("", 0, 0).
void FailAt(const char* name, long n, int error);
// Returns whether the operation fails now, with errno set.
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
