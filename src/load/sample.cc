#include "load/sample.h"

#include <nlohmann/json.hpp>

namespace kvasir::load {
namespace {

using nlohmann::json;

// Tells whether an event has a token, whose text may be empty: not the role that begins a chat, and
// not the reason at the end.
bool HasToken(const json& event) {
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return false;
  const json& choice = choices->front();
  if (!choice.is_object()) return false;
  const auto text_of = [](const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto delta = choice.find("delta");
  const bool is_chat = delta != choice.end() && delta->is_object();
  if (!(is_chat ? text_of(*delta, "content") : text_of(choice, "text")).empty()) return true;
  const auto reason = choice.find("finish_reason");
  const bool ends = reason != choice.end() && !reason->is_null();
  return !ends && !(is_chat && delta->contains("role"));
}

// Tells whether this is certainly a token and nothing else, without parsing it: most events are.
// Strings inside of texts have escaped quotes, so they are not found.
bool IsPlainToken(std::string_view data) {
  const auto has = [&](std::string_view what) { return data.find(what) != data.npos; };
  return has(R"("finish_reason":null)") && has(R"("choices":[{)") && !has(R"("role")") &&
         (!has(R"("usage")") || has(R"("usage":null)"));
}

void AddToken(uint64_t now_ns, Sample& sample) {
  if (sample.first_ns == 0) {
    sample.first_ns = now_ns;
  } else {
    sample.gaps_ms.push_back(static_cast<double>(now_ns - sample.last_ns) * 1e-6);
  }
  sample.last_ns = now_ns;
}

uint64_t CountIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

void AddUsage(const json& answer, Sample& sample) {
  const auto usage = answer.find("usage");
  if (usage == answer.end() || !usage->is_object()) return;
  sample.prompt_tokens = CountIn(*usage, "prompt_tokens");
  sample.completion_tokens = CountIn(*usage, "completion_tokens");
  const auto details = usage->find("prompt_tokens_details");
  if (details != usage->end() && details->is_object()) {
    sample.cached_tokens = CountIn(*details, "cached_tokens");
  }
}

}  // namespace

void AddEvent(std::string_view data, uint64_t now_ns, Sample& sample) {
  if (data == "[DONE]") {
    sample.done = true;
    return;
  }
  if (IsPlainToken(data)) return AddToken(now_ns, sample);
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return;
  if (HasToken(event)) AddToken(now_ns, sample);
  AddUsage(event, sample);
}

void AddWhole(std::string_view body, uint64_t now_ns, Sample& sample) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("choices")) return;
  AddToken(now_ns, sample);
  AddUsage(answer, sample);
  sample.done = true;
}

}  // namespace kvasir::load
