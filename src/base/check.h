// KV_CHECK aborts on a bug in this code, never on input from outside. KV_DCHECK is for hot paths.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KV_CHECK(condition)                                                               \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      std::fprintf(stderr, "kvasir: bug: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

#ifdef NDEBUG
#define KV_DCHECK(condition) \
  do {                       \
  } while (false && (condition))
#else
#define KV_DCHECK(condition) KV_CHECK(condition)
#endif
