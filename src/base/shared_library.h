// Finds functions of a shared library that is loaded when it is first needed, and not linked.
#pragma once

#include <dlfcn.h>

namespace kvasir {

// Returns the library, which stays until the process ends. nullptr: it is not installed.
inline void* LoadSharedLibrary(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

// Finds a function by its name. False: the library is not there, or has no such function.
template <typename Function>
bool FindFunction(void* library, const char* name, Function* function) {
  *function = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace kvasir
