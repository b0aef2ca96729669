// Reads the XML that an S3 store sends: errors and lists of names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Returns what an error response says: "NoSuchBucket: The specified bucket does not exist", its
// status where it says nothing. Printable, at most 300 bytes.
std::string S3ErrorWords(int status, std::string_view xml);

// One response to ListObjectsV2.
struct S3List {
  std::vector<std::string> names;
  bool is_cut = false;  // more names follow
};
// kCorruption: it is another response, or has over `most` names.
Result<S3List> ReadS3List(std::string_view xml, size_t most);

}  // namespace kvasir
