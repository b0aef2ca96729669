#include "server/session_json.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json_writer.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

void AddMembers(std::string_view object, ordered_json* to) {
  if (object.empty()) return;
  const ordered_json members = ordered_json::parse(object);
  for (const auto& [key, value] : members.items()) {
    if (!to->contains(key)) (*to)[key] = value;
  }
}

ordered_json MessageJson(const SessionMessage& message, size_t index,
                         std::optional<uint32_t> tokens) {
  ordered_json segments = ordered_json::array();
  for (const SessionSegment& segment : message.more().segments) {
    segments.push_back({{"name", segment.name}, {"begin", segment.begin}, {"end", segment.end}});
  }
  ordered_json body = {{"index", index},
                       {"role", message.role},
                       {"content", message.content},
                       {"tokens", tokens ? ordered_json(*tokens) : ordered_json()},
                       {"generated", message.generated},
                       {"segments", std::move(segments)}};
  AddMembers(message.more().fields, &body);
  return body;
}

}  // namespace

ordered_json SessionJson(const SessionStore::Entry& entry) {
  const SessionState& state = *entry.state;
  const SessionSetup& setup = *state.setup;
  ordered_json body = {{"id", entry.id},
                       {"object", "session"},
                       {"created", entry.created_s},
                       {"model", setup.model},
                       {"messages", entry.num_messages},
                       {"tokens", state.tokens ? ordered_json(*state.tokens) : ordered_json()},
                       {"max_context", setup.max_context},
                       {"on_full", setup.drops_oldest ? "drop_oldest_turns" : "reject"},
                       {"ids", setup.exact_ids ? "exact" : "canonical"},
                       {"prepare", setup.prepare},
                       {"durable", entry.on_disk}};
  AddMembers(setup.fields, &body);
  body["sampling"] =
      setup.sampling.empty() ? ordered_json::object() : ordered_json::parse(setup.sampling);
  body["metadata"] =
      setup.metadata.empty() ? ordered_json::object() : ordered_json::parse(setup.metadata);
  return body;
}

HttpResponse SessionResponse(const SessionStore::Entry& entry,
                             const std::vector<std::string>& ignored, int status) {
  HttpResponse response;
  response.status = status;
  ordered_json body = SessionJson(entry);
  body["ignored"] = ignored;
  response.body = Dump(body);
  return response;
}

Parts WholeSession(SessionStore::Entry entry, std::optional<ChatPrompt> prompt, bool with_ids) {
  ordered_json head = SessionJson(entry);
  head.erase("messages");
  if (with_ids) head.erase("ids");
  head["tokens"] = prompt ? ordered_json(prompt->ids.size()) : ordered_json();
  std::string out = Dump(head);
  out.pop_back();
  if (with_ids && prompt) {
    out += ",\"ids\":[";
    for (size_t i = 0; i < prompt->ids.size(); ++i) {
      if (i > 0) out += ',';
      out += std::to_string(prompt->ids[i]);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += ']';
  }
  out += ",\"messages\":[";
  const auto& messages = entry.state->messages;
  uint32_t begin = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::optional<uint32_t> tokens;
    if (prompt && i < prompt->message_ends.size()) {
      tokens = prompt->message_ends[i] - begin;
      begin = prompt->message_ends[i];
    }
    if (i > 0) out += ',';
    out += Dump(MessageJson(*messages[i], i, tokens));
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

}  // namespace kvasir
