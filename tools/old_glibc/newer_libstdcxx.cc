// Functions that headers of a newer GCC call and that an older libstdc++ does not export. They are
// linked into each shared object, and hidden in it. GCC's toolsets for old distributions do the
// same with libstdc++_nonshared.a.
#include <new>
#include <sstream>

#define HIDE(symbol) __asm__(".hidden " symbol)
HIDE("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
HIDE("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
HIDE("_ZSt28__throw_bad_array_new_lengthv");
HIDE("_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
HIDE("_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC2Ev");
HIDE("_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
HIDE("_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC2Ev");

// Since GCC 11, headers call these two members of std::exception_ptr. Older libraries call them in
// the copy constructor and the destructor, which they export.
extern "C" {

void CopyExceptionPtr(void* self, const void* other) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void DestroyExceptionPtr(void* self) noexcept __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

void AddReference(void* self) noexcept __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void AddReference(void* self) noexcept {
  void* copy;  // not destroyed, so that its reference remains
  CopyExceptionPtr(&copy, self);
}

void Release(void* self) noexcept __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void Release(void* self) noexcept { DestroyExceptionPtr(self); }

}  // extern "C"

namespace std {

// Since GCC 11. `new T[n]` throws it if n is negative or too large.
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// Since GCC 9. The constructor without a mode.
template basic_ostringstream<char>::basic_ostringstream();
template basic_stringstream<char>::basic_stringstream();

}  // namespace std
