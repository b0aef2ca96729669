// KV_NEEDS: a test that reads a file beside the repository.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

// Skips the test where `path` is missing. In CI, where nothing may be missing, fails it.
#define KV_NEEDS(path)                                              \
  if (!std::filesystem::exists(path)) {                             \
    if (std::getenv("CI") != nullptr) FAIL() << "needs " << (path); \
    GTEST_SKIP() << "needs " << (path);                             \
  }                                                                 \
  static_assert(true)
