// Requests with adapters on one engine, and random histories of them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine_scenario.h"

namespace kvasir {

inline EngineOptions WithAdapters(uint32_t max_loaded = 3) {
  EngineOptions options = TinyOptions();
  options.adapters.loads_later = true;
  options.adapters.max_loaded = max_loaded;
  return options;
}

inline AdapterCard LoadSeed(Engine& engine, const std::string& name, uint64_t seed,
                            Engine::AdapterNames names = Engine::AdapterNames::kMustBeNew) {
  const auto card = engine.LoadAdapter({.path = "", .name = name, .scale = 0, .seed = seed}, names);
  EXPECT_TRUE(card) << (card ? "" : card.error().text());
  return card ? *card : AdapterCard();
}

inline std::vector<TokenId> AdapterPrompt(uint32_t tokens, uint64_t seed) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<TokenId>(DrawBits(seed, 1, i) % 131));
  }
  return ids;
}

// The bits of the last row of a prompt's logits, and the receipt.
struct AdaptedRow {
  std::vector<float> logits;
  Receipt receipt;
  bool operator==(const AdaptedRow& other) const {
    return logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

inline AdaptedRow ComputeRow(Engine& engine, const std::vector<TokenId>& prompt,
                             std::optional<std::vector<AdapterChoice>> adapters,
                             Reuse reuse = Reuse::kBlocks, std::optional<std::string> salt = {}) {
  AdaptedRow row;
  GenerateRequest request = Greedy(prompt, 1);
  request.adapters = std::move(adapters);
  request.reuse = reuse;
  request.cache_salt = std::move(salt);
  request.logits_from = static_cast<uint32_t>(prompt.size()) - 1;
  request.on_logits = [&row](uint32_t, uint32_t, std::span<const float> logits) {
    row.logits.assign(logits.begin(), logits.end());
  };
  Pending pending(engine, std::move(request));
  row.receipt = pending.Wait().receipt;
  return row;
}

using Choices = std::vector<AdapterChoice>;

// What a random history did.
struct AdapterHistory {
  uint64_t requests = 0;
  uint64_t hits = 0;     // requests that found something
  uint64_t adapted = 0;  // requests with adapters
  uint64_t foreign = 0;  // rows with other bits than the same numbers give without a cache
};

// Runs random requests, scales, salts, reloads under the same names and erases.
inline AdapterHistory RunAdapterHistory(uint64_t seed, int steps) {
  const auto engine = LoadEngine(WithAdapters(3));
  const auto reference = LoadEngine(WithAdapters(3));
  Random random(seed);
  std::map<std::string, uint64_t> seeds;  // by name
  const char* const kNames[] = {"x", "y"};
  const double kScales[] = {1, 0.5, -1};
  std::map<std::string, AdaptedRow> known;
  AdapterHistory counts;
  for (const char* name : kNames) {
    seeds[name] = 1;
    for (Engine* each : {engine.get(), reference.get()}) LoadSeed(*each, name, 1);
  }
  for (int step = 0; step < steps; ++step) {
    const uint64_t action = random.Below(40);
    if (action == 0) {
      const std::string name = kNames[random.Below(2)];
      seeds[name] = 1 + random.Below(4);
      for (Engine* each : {engine.get(), reference.get()}) {
        LoadSeed(*each, name, seeds[name], Engine::AdapterNames::kMayReplace);
      }
      continue;
    }
    if (action == 1) {
      engine->Erase("default");
      continue;
    }
    const auto prompt =
        AdapterPrompt(17 + 16 * static_cast<uint32_t>(random.Below(3)), random.Below(3));
    Choices list;
    std::string key = std::to_string(prompt.size()) + ":" + std::to_string(prompt[3]);
    for (uint64_t id = 0; id < 2; ++id) {
      if (random.Below(2) == 0) continue;
      list.push_back({id, kScales[random.Below(3)]});
      key += "|" + std::to_string(seeds[kNames[id]]) + "*" + std::to_string(list.back().scale);
    }
    if (!known.contains(key)) known[key] = ComputeRow(*reference, prompt, list, Reuse::kNothing);
    const bool is_salted = random.Below(4) == 0;
    const AdaptedRow row =
        ComputeRow(*engine, prompt, list, Reuse::kBlocks,
                   is_salted ? std::optional<std::string>("salt") : std::nullopt);
    const bool differs = !(row == known[key]);
    EXPECT_FALSE(differs) << "step " << step << ", " << key;
    ++counts.requests;
    counts.foreign += differs;
    counts.hits += row.receipt.cached_tokens() > 0;
    counts.adapted += !list.empty();
  }
  engine->CheckInvariants();
  return counts;
}

}  // namespace kvasir
