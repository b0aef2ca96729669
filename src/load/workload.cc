#include "load/workload.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "base/result.h"

namespace kvasir::load {
namespace {

constexpr uint32_t kBurstRequests = 16, kBurstShared = 2048, kBurstOwn = 64, kBurstNew = 32;
constexpr uint32_t kChats = 64, kChatTurns = 4, kChatBegin = 64, kChatTurn = 48;
constexpr uint32_t kTenantRequests = 64, kTenantPrompt = 256, kTenantNew = 64;

void AddTokens(Random& random, uint32_t count, uint32_t vocab_size, std::vector<TokenId>& prompt) {
  for (uint32_t i = 0; i < count; ++i) {
    prompt.push_back(static_cast<TokenId>(random.Below(vocab_size)));
  }
}

std::vector<LoadRequest> Burst(const WorkloadOptions& options, Random& random) {
  const uint32_t count = options.requests > 0 ? options.requests : kBurstRequests;
  std::vector<TokenId> shared;  // by bursts of all seeds
  Random same(0);
  AddTokens(same, std::min(kBurstShared, options.max_total / 2), options.vocab_size, shared);
  std::vector<LoadRequest> requests;
  for (uint32_t i = 0; i < count; ++i) {
    LoadRequest request{.client = i, .prompt = shared, .max_tokens = kBurstNew};
    AddTokens(random, kBurstOwn, options.vocab_size, request.prompt);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Makes the turns of a chat requests of one client. Answers are not known beforehand, so a turn
// follows on the prompt of the one before, as an edited chat would. It says no max_tokens: the
// model decides where an answer ends.
std::vector<LoadRequest> Chats(const WorkloadOptions& options, Random& random) {
  const uint32_t turns = options.requests > 0 ? options.requests : kChats * kChatTurns;
  std::vector<LoadRequest> requests;
  for (uint32_t i = 0; i < turns; ++i) {
    LoadRequest request{.client = i / kChatTurns, .to_the_end = false};
    const bool begins = i % kChatTurns == 0;
    if (!begins) request.prompt = requests.back().prompt;
    AddTokens(random, begins ? kChatBegin : kChatTurn, options.vocab_size, request.prompt);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<LoadRequest> Tenants(const WorkloadOptions& options, Random& random) {
  const uint32_t count = options.requests > 0 ? options.requests : kTenantRequests;
  std::vector<LoadRequest> requests;
  for (uint32_t i = 0; i < count; ++i) {
    LoadRequest request{.client = i, .max_tokens = kTenantNew};
    AddTokens(random, kTenantPrompt, options.vocab_size, request.prompt);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<LoadRequest> OfRecording(const WorkloadOptions& options,
                                     std::vector<RecordedRequest> recording, Random& random) {
  for (size_t i = 0; options.shuffle && i + 1 < recording.size(); ++i) {
    std::swap(recording[i], recording[i + random.Below(recording.size() - i)]);
  }
  const size_t count = options.requests > 0 ? std::min<size_t>(options.requests, recording.size())
                                            : recording.size();
  const auto scaled = [&](uint32_t tokens, uint32_t most) {
    return static_cast<uint32_t>(std::clamp<double>(std::round(tokens * options.scale), 1, most));
  };
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    LoadRequest request{
        .due_s = static_cast<double>(recording[i].timestamp_ms) * 1e-3 / options.scale,
        .client = static_cast<uint32_t>(i)};
    request.max_tokens = scaled(recording[i].output_tokens, options.max_total / 2);
    request.prompt = PromptOf(recording[i], options.vocab_size);
    const uint32_t most = options.max_total - request.max_tokens;
    request.prompt.resize(
        std::min<size_t>(request.prompt.size(), scaled(recording[i].input_tokens, most)));
    if (!request.prompt.empty()) requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

Result<std::vector<LoadRequest>> MakeWorkload(const WorkloadOptions& options,
                                              const std::vector<RecordedRequest>& recording) {
  const bool is_recorded = options.name == "azure" || options.name == "mooncake";
  if (is_recorded && recording.empty()) {
    return Fail(Code::kInvalidArgument, "--trace: the workload {} needs a recording with requests",
                options.name);
  }
  Random random(options.seed);
  std::vector<LoadRequest> requests;
  if (is_recorded) {
    requests = OfRecording(options, recording, random);
  } else if (options.name == "burst") {
    requests = Burst(options, random);
  } else if (options.name == "chats") {
    requests = Chats(options, random);
  } else if (options.name == "tenants") {
    requests = Tenants(options, random);
  } else {
    return Fail(Code::kInvalidArgument, "--workload: '{}' is unknown (known: {})", options.name,
                fmt::join(kWorkloads, ", "));
  }
  double due_s = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    LoadRequest& request = requests[i];
    request.tenant = request.client % std::max(options.tenants, 1u);
    request.seed = Mix64(options.seed + i) >> 33;
    if (options.rate > 0) {
      due_s -= std::log(1 - random.Uniform()) / options.rate;
      request.due_s = due_s;
    }
    const size_t most = options.max_total - std::min(options.max_total - 1, request.max_tokens);
    if (request.prompt.size() > most) request.prompt.resize(most);
  }
  return requests;
}

}  // namespace kvasir::load
