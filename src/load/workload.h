// Workload: the requests that a load run sends, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"
#include "testing/recording.h"

namespace kvasir::load {

struct LoadRequest {
  double due_s = 0;  // since the run began; 0 when a number of clients, not a clock, decides
  uint32_t tenant = 0;
  // Requests of one client follow each other: the next one is sent when this one has ended.
  uint32_t client = 0;
  std::vector<TokenId> prompt;
  uint32_t max_tokens = 0;  // 0: not sent, the server decides
  bool to_the_end = true;   // exactly max_tokens are generated
  uint64_t seed = 0;        // of its random draws
};

struct WorkloadOptions {
  std::string name = "burst";
  uint32_t requests = 0;  // 0: the workload's own number
  double rate = 0;        // requests a second, by a Poisson process; 0: `concurrency` clients
  uint32_t concurrency = 8;
  uint32_t tenants = 1;
  uint32_t vocab_size = 1024;
  double scale = 1;           // of a recording: lengths are multiplied, times divided
  bool shuffle = false;       // a recording's requests in random order, without its times
  uint32_t max_total = 2048;  // prompt and answer; longer prompts are cut
  uint64_t seed = 1;
};

inline constexpr std::string_view kWorkloads[] = {"burst", "chats", "tenants", "azure", "mooncake"};

// Returns the requests of a workload, by due_s. The same options give the same requests.
//   burst     16 requests at once that share 2,048 tokens (half of max_total, if that is less) with
//             each other and with bursts of other seeds, each with 64 more and 32 new ones
//   chats     64 chats of several turns: each turn's prompt begins with the last one's
//   tenants   prompts of 256 tokens and answers of 64, of each tenant alike
//   azure, mooncake  the recording's lengths, times and shared blocks
// kInvalidArgument: an unknown name, or a recording where none is taken or the other way round.
Result<std::vector<LoadRequest>> MakeWorkload(const WorkloadOptions& options,
                                              const std::vector<RecordedRequest>& recording);

}  // namespace kvasir::load
