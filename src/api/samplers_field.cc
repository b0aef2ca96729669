#include "api/samplers_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "api/request_limits.h"

namespace kvasir {
namespace {

struct SamplerName {
  std::string_view name;
  char letter;
  std::string_view other;  // names without `_` and `-`; empty: none
};
constexpr SamplerName kSamplerNames[] = {
    {"penalties", 'e', ""}, {"dry", 'd', ""},       {"top_n_sigma", 's', ""},
    {"top_k", 'k', ""},     {"typ_p", 'y', "typ"},  {"top_p", 'p', "nucleus"},
    {"min_p", 'm', ""},     {"xtc", 'x', ""},       {"temperature", 't', "temp"},
    {"infill", 'i', ""},    {"adaptive_p", 'a', ""}};

// Pairs whose order changes the answer, and which Sampler does in this one. (top_k and min_p may
// stand in either.)
constexpr std::pair<std::string_view, std::string_view> kFixedOrder[] = {
    {"penalties", "top_k"},  {"penalties", "top_p"},       {"penalties", "min_p"},
    {"penalties", "infill"}, {"penalties", "temperature"}, {"top_k", "top_p"},
    {"top_k", "infill"},     {"top_p", "min_p"},           {"top_p", "infill"},
    {"min_p", "infill"}};

std::string Bare(std::string_view name) {
  std::string bare(name);
  std::erase_if(bare, [](char c) { return c == '_' || c == '-'; });
  return bare;
}

// Returns the sampler that a request calls so; empty for other names.
std::string_view NameOf(std::string_view given) {
  const std::string bare = Bare(given);
  for (const SamplerName& one : kSamplerNames) {
    if (bare == Bare(one.name) || (!one.other.empty() && bare == one.other)) return one.name;
  }
  return {};
}

std::string_view NameOf(char letter) {
  for (const SamplerName& one : kSamplerNames) {
    if (one.letter == letter) return one.name;
  }
  return {};
}

std::optional<std::vector<std::string>> ListedSamplers(JsonFields& fields) {
  const JsonValue* value = fields.Find("samplers");
  if (!value) return std::nullopt;
  std::vector<std::string> given, names;
  if (value->is_string()) {
    if (value->text().size() > kMaxListedSamplers) fields.Fail("samplers", "has too many letters");
    for (const char letter : value->text()) given.emplace_back(NameOf(letter));
  } else {
    fields.Strings("samplers", kMaxListedSamplers, kMaxSamplerBytes, &given);
  }
  for (const std::string& one : given) {
    const std::string_view name = NameOf(one);
    if (name.empty()) fields.Fail("samplers", fmt::format("\"{}\" is not a sampler", one));
    if (std::ranges::find(names, name) != names.end()) {
      fields.Fail("samplers", fmt::format("has {} twice, which is not supported", name));
    }
    names.emplace_back(name);
  }
  return names;
}

void TurnOffOthers(const std::vector<std::string>& names, SamplingParams* sampling) {
  const auto lacks = [&](std::string_view name) {
    return std::ranges::find(names, name) == names.end();
  };
  if (lacks("penalties")) {
    sampling->repetition_penalty = 1;
    sampling->presence_penalty = sampling->frequency_penalty = 0;
  }
  if (lacks("top_k")) sampling->top_k = 0;
  if (lacks("top_p")) sampling->top_p = 1;
  if (lacks("min_p")) sampling->min_p = 0;
  if (lacks("temperature")) sampling->temperature = 1;
  sampling->infill = !lacks("infill");
}

// Returns the names that change something, in order.
std::vector<std::string_view> ThatWork(const std::vector<std::string>& names,
                                       const SamplingParams& sampling) {
  std::vector<std::string_view> work;
  for (const std::string& name : names) {
    const bool has_penalties = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                               sampling.frequency_penalty != 0;
    if ((name == "penalties" && has_penalties) || (name == "top_k" && sampling.top_k > 0) ||
        (name == "top_p" && sampling.top_p < 1) || (name == "min_p" && sampling.min_p > 0) ||
        (name == "temperature" && sampling.temperature != 1) || name == "infill") {
      work.push_back(name);
    }
  }
  return work;
}

// Tells whether `first` and `then` work, but not in this order.
bool IsSwapped(std::span<const std::string_view> work, std::string_view first,
               std::string_view then) {
  const auto at = std::ranges::find(work, first), after = std::ranges::find(work, then);
  return at != work.end() && after != work.end() && after < at;
}

}  // namespace

std::optional<std::vector<std::string>> ReadSamplers(JsonFields& fields, SamplingParams* sampling) {
  auto names = ListedSamplers(fields);
  if (!names || fields.error()) return std::nullopt;
  TurnOffOthers(*names, sampling);
  const std::vector<std::string_view> work = ThatWork(*names, *sampling);
  const std::string_view cuts[] = {"top_p", "min_p", "infill"};
  bool is_first = true, is_last = true;  // temperature among the cuts whose result it changes
  for (const std::string_view cut : cuts) {
    is_first = is_first && !IsSwapped(work, "temperature", cut);
    is_last = is_last && !IsSwapped(work, cut, "temperature");
  }
  // The largest logit stays the largest one, but infill may drop it.
  if (sampling->temperature == 0 && !sampling->infill) is_first = true;
  sampling->temperature_last = is_last && !is_first;
  const bool is_fixed = std::ranges::none_of(
      kFixedOrder, [&](const auto& one) { return IsSwapped(work, one.first, one.second); });
  if (!is_fixed || (!is_first && !is_last)) {
    fields.Fail("samplers",
                fmt::format("the order {} is not supported: penalties, top_k, top_p, min_p and "
                            "infill come in this order, and temperature before top_p or last",
                            fmt::join(work, ", ")));
  }
  return names;
}

}  // namespace kvasir
