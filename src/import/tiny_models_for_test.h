// The golden models of tests/data: the one list of them that tests walk.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "source_paths.h"

namespace kvasir {

inline std::string TinyModelPath(const std::string& name) {
  return std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + name;
}

// Returns names of the folders tests/data/tiny-*, in order: at least one of each family, and of
// each variant that a layer computes.
inline std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TinyModelPath(""))) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("tiny-")) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  EXPECT_GE(names.size(), 20u);
  return names;
}

}  // namespace kvasir
