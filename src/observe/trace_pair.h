// TracePair: a name and a value that OpenTelemetry's variables give.
#pragma once

#include <string>

namespace kvasir {

struct TracePair {
  std::string name, value;
};

}  // namespace kvasir
