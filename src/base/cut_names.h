// CutNames: lists of names that receipts have, however many a request makes up.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/json_fields.h"

namespace kvasir {

// Leaves the first kMaxUnread names, and one entry that counts the others: "and 12 more".
inline void CutNames(std::vector<std::string>* names) {
  if (names->size() <= kMaxUnread) return;
  const size_t more = names->size() - kMaxUnread;
  names->resize(kMaxUnread);
  names->push_back(fmt::format("and {} more", more));
}

}  // namespace kvasir
