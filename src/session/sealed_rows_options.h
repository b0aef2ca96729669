// SealedRowsOptions: where the rows of SealedRows lie, and what they may take.
#pragma once

#include <cstdint>
#include <string>

#include "base/secret.h"

namespace kvasir {

struct SealedRowsOptions {
  std::string folder;  // that of the disk tier
  // The limit of everything in the folder. The file and its log take an eighth of it at most.
  uint64_t cap_bytes = 0;
  Secret secret{};
  // Rows and their log stay as they are: an erase that a crash ended does not go on.
  bool only_looks = false;
  // A damaged file gets another name, and a new one is begun; else it is an error.
  bool sets_aside = true;
  // Rows may be stored where blocks fill the folder: the tier removes some when it opens it next.
  bool blocks_give_way = false;
  const char* vfs = nullptr;  // of SQLite, for tests
};

}  // namespace kvasir
