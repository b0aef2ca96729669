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
  for (const MessageSegment& segment : message.more().segments) {
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
  const std::string title = entry.title.empty() ? TitleOf(state) : entry.title;
  ordered_json body = {{"id", entry.id},
                       {"object", "session"},
                       {"created", entry.created_s},
                       {"title", title.empty() ? ordered_json() : ordered_json(title)},
                       {"origin", setup.origin},
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

HttpResponse SessionList(const SessionStore::Page& page, std::optional<uint64_t> unreadable) {
  ordered_json data = ordered_json::array(), first, last;
  for (const SessionStore::Entry& entry : page.entries) data.push_back(SessionJson(entry));
  if (!page.last_id.empty()) {
    first = page.first_id;
    last = page.last_id;
  }
  ordered_json list = {{"object", "list"},   {"data", std::move(data)},   {"first_id", first},
                       {"last_id", last},    {"has_more", page.has_more}, {"damaged", page.damaged},
                       {"newer", page.newer}};
  if (unreadable) list["unreadable"] = *unreadable;
  HttpResponse response;
  response.body = Dump(list);
  return response;
}

Parts WholeSession(SessionStore::Entry entry, std::optional<ChatPrompt> prompt, bool with_ids) {
  ordered_json head = SessionJson(entry);
  head.erase("messages");
  if (with_ids) head.erase("ids");
  head["tokens"] = prompt ? ordered_json(prompt->ids.size()) : ordered_json();
  co_yield BeginObject(head);
  if (with_ids && prompt) {
    co_yield "\"ids\":";
    co_yield ListParts(prompt->ids);
    co_yield ",";
  }
  co_yield "\"messages\":[";
  const auto& messages = entry.state->messages;
  uint32_t begin = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::optional<uint32_t> tokens;
    if (prompt && i < prompt->message_ends.size()) {
      tokens = prompt->message_ends[i] - begin;
      begin = prompt->message_ends[i];
    }
    if (i > 0) co_yield ",";
    co_yield Dump(MessageJson(*messages[i], i, tokens));
  }
  co_yield "]}";
}

}  // namespace kvasir
