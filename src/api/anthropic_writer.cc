#include "api/anthropic_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/answer_parts.h"
#include "api/openai_json.h"
#include "base/json_tree.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Thoughts of Anthropic's models are signed, and some clients send back only those that are.
constexpr const char* kSignature = "kvasir";
constexpr const char* kDeadlineMatch = "deadline";

// Returns an event whose name is its object's type.
std::string NamedEvent(const json& object) {
  return "event: " + object.at("type").get<std::string>() + "\n" + SseEvent(object);
}

// Returns the input of a call. What max_tokens has cut off is not an object: its input is empty.
std::string_view InputOf(const ToolCall& call) {
  const auto input = JsonTree().Parse(call.arguments);
  return input && input->is_object() ? std::string_view(call.arguments) : "{}";
}

// Returns why the prompt is not that of the message that the request names, and more; null: it is.
json MissReasonOf(const HeadComparison& compared, uint32_t cached) {
  const auto missed = [&](const char* type) -> json {
    return {{"type", type}, {"cache_missed_input_tokens", compared.missed(cached)}};
  };
  switch (compared.ChangeWith(cached)) {
    case HeadChange::kNone:
      return {};
    case HeadChange::kUnknown:
      return {{"type", "previous_message_not_found"}};
    case HeadChange::kModel:
      return missed("model_changed");
    case HeadChange::kTools:
      return missed("tools_changed");
    case HeadChange::kSystem:
      return missed("system_changed");
    case HeadChange::kMessages:
      return missed("messages_changed");
    case HeadChange::kUnavailable:
      break;
  }
  return {{"type", "unavailable"}};
}

// Yields the blocks of an answer.
Parts ContentParts(const Answer::Choice& choice) {
  const char* comma = "";
  for (const PartOfAnswer& part : PartsOf(choice)) {
    co_yield comma;
    comma = ",";
    if (part.call) {
      co_yield fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})",
                           Quoted(part.call->id), Quoted(part.call->name), InputOf(*part.call));
      continue;
    }
    // Not a conditional operator in co_yield: GCC 12 frees its temporary twice.
    std::string begin = R"({"type":"text","text":)";
    if (part.kind == PartOfAnswer::Kind::kThought) {
      begin = fmt::format(R"({{"type":"thinking","signature":"{}","thinking":)", kSignature);
    }
    co_yield begin;
    co_yield QuotedParts(part.text);
    co_yield "}";
  }
}

}  // namespace

json AnthropicError(const json& error, int status) {
  const char* type = status < 500 ? "invalid_request_error" : "api_error";
  constexpr std::pair<int, const char*> kTypes[] = {
      {401, "authentication_error"}, {403, "permission_error"},  {404, "not_found_error"},
      {408, "timeout_error"},        {413, "request_too_large"}, {429, "rate_limit_error"},
      {503, "overloaded_error"},     {504, "timeout_error"}};
  for (const auto& [one, name] : kTypes) {
    if (one == status) type = name;
  }
  json shaped = {{"type", type}, {"message", error.at("message")}};
  if (error.contains("n_prompt_tokens")) {
    const auto tokens = error.at("n_prompt_tokens").get<uint64_t>();
    const bool is_least = error.contains("n_prompt_tokens_is_least");
    shaped["message"] =
        fmt::format("prompt is too long: {}{} tokens > {} maximum", is_least ? "more than " : "",
                    tokens - (is_least ? 1 : 0), error.at("n_ctx").get<uint64_t>());
  }
  if (error.at("param") == kThreadField) {
    shaped["details"] = {{"error_code", "thread_unsupported_request"},
                         {"unsupported", json::array()}};
  }
  return shaped;
}

json AnthropicWriter::Usage(uint32_t prompt_tokens, uint32_t cached, uint64_t output_tokens) const {
  const uint32_t created = form_.marked_tokens - std::min(form_.marked_tokens, cached);
  return {{"input_tokens", prompt_tokens - cached - created},
          {"cache_read_input_tokens", cached},
          {"cache_creation_input_tokens", created},
          {"cache_creation",
           {{"ephemeral_5m_input_tokens", form_.for_an_hour ? 0 : created},
            {"ephemeral_1h_input_tokens", form_.for_an_hour ? created : 0}}},
          {"output_tokens", output_tokens}};
}

json AnthropicWriter::FinalUsage(const Answer& answer) const {
  const Receipt& receipt = answer.receipt();
  json usage = Usage(receipt.prompt_tokens, receipt.cached_tokens(), answer.completion_tokens());
  if (const auto tokens = answer.reasoning_tokens()) {
    usage["output_tokens_details"] = {{"thinking_tokens", *tokens}};
  }
  return usage;
}

json AnthropicWriter::Envelope(const Answer& answer, uint32_t cached) const {
  json envelope = {{"id", answer.id()},      {"type", "message"},
                   {"role", "assistant"},    {"model", answer.spec().model},
                   {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  if (const auto& compared = answer.spec().compared) {
    const json reason = MissReasonOf(*compared, cached);
    envelope["diagnostics"] = reason.is_null() ? json() : json{{"cache_miss_reason", reason}};
  }
  return envelope;
}

const char* AnthropicWriter::StopReason(const Answer::Choice& choice) const {
  if (choice.finish == FinishReason::kStop) {
    if (choice.stop_match) return "stop_sequence";
    return choice.read && choice.read->pieces.num_calls() > 0 ? "tool_use" : "end_turn";
  }
  const bool in_time = choice.stop_match != kDeadlineMatch;
  const bool is_full = choice.num_tokens < form_.max_tokens;
  return in_time && is_full ? "model_context_window_exceeded" : "max_tokens";
}

std::string AnthropicWriter::Start(const Answer& answer, const Event& event) const {
  const Progress& at = event.progress.value_or(Progress());
  json message = Envelope(answer, event.last ? answer.receipt().cached_tokens() : at.cached);
  message["content"] = json::array();
  message["usage"] =
      event.last ? FinalUsage(answer) : Usage(at.total, at.cached, answer.choice(0).num_tokens);
  return NamedEvent({{"type", "message_start"}, {"message", std::move(message)}});
}

std::string AnthropicWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                        const Event& event) {
  std::string out;
  if (!std::exchange(has_started_, true)) out = Start(answer, event);
  if (!answer.choice(step.choice).read && !event.text.empty()) {
    out += Take({AnswerEvent::Kind::kContent, event.text, ""});
  }
  for (const AnswerEvent& piece : step.pieces) out += Take(piece);
  return out;
}

std::string AnthropicWriter::Take(const AnswerEvent& piece) {
  std::string out;
  switch (piece.kind) {
    case AnswerEvent::Kind::kReasoning:
      if (open_ != Block::kThought) {
        out = BeginBlock(Block::kThought,
                         {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      }
      return out += delta_.Around(piece.text);
    case AnswerEvent::Kind::kContent:
      if (open_ != Block::kText) out = BeginBlock(Block::kText, {{"type", "text"}, {"text", ""}});
      return out += delta_.Around(piece.text);
    case AnswerEvent::Kind::kCallBegin:
      return BeginBlock(Block::kCall, {{"type", "tool_use"},
                                       {"id", piece.id},
                                       {"name", piece.text},
                                       {"input", json::object()}});
    case AnswerEvent::Kind::kArguments:
      return delta_.Around(piece.text);
    case AnswerEvent::Kind::kCallEnd:
      return Close();
  }
  return out;
}

std::string AnthropicWriter::BeginBlock(Block kind, const json& block) {
  std::string out = Close();
  open_ = kind;
  out += NamedEvent(
      {{"type", "content_block_start"}, {"index", num_blocks_++}, {"content_block", block}});
  delta_ = DeltaFrame();
  return out;
}

std::string AnthropicWriter::Close() {
  if (open_ == Block::kNone) return "";
  std::string out;
  if (open_ == Block::kThought) {
    out = NamedEvent({{"type", "content_block_delta"},
                      {"index", num_blocks_ - 1},
                      {"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}});
  }
  open_ = Block::kNone;
  return out + NamedEvent({{"type", "content_block_stop"}, {"index", num_blocks_ - 1}});
}

TextFrame AnthropicWriter::DeltaFrame() const {
  const char* delta = open_ == Block::kThought ? R"("thinking_delta","thinking":)"
                      : open_ == Block::kText  ? R"("text_delta","text":)"
                                               : R"("input_json_delta","partial_json":)";
  constexpr const char* kEvent = "content_block_delta";
  return {fmt::format(R"(event: {}{}data: {{"type":"{}","index":{},"delta":{{"type":{})", kEvent,
                      '\n', kEvent, num_blocks_ - 1, delta),
          "}}\n\n"};
}

std::string AnthropicWriter::EndEvents(const Answer& answer, size_t) {
  const Answer::Choice& choice = answer.choice(0);
  json delta = {{"stop_reason", StopReason(choice)}, {"stop_sequence", nullptr}};
  if (choice.finish == FinishReason::kStop && choice.stop_match) {
    delta["stop_sequence"] = *choice.stop_match;
  }
  std::string out = Close();
  out += NamedEvent(
      {{"type", "message_delta"}, {"delta", std::move(delta)}, {"usage", FinalUsage(answer)}});
  return out + NamedEvent({{"type", "message_stop"}, {"kvasir", FinalReceipt(answer)}});
}

std::string AnthropicWriter::PingEvent(const Answer&) { return NamedEvent({{"type", "ping"}}); }

std::string AnthropicWriter::ErrorEvent(const Error& error) const {
  return NamedEvent(
      {{"type", "error"},
       {"error", AnthropicError(json::parse(ErrorObject(error)), HttpStatus(error))}});
}

Parts AnthropicWriter::Body(const Answer& answer) const {
  const Answer::Choice& choice = answer.choice(0);
  json head = Envelope(answer, answer.receipt().cached_tokens());
  head["stop_reason"] = StopReason(choice);
  if (choice.finish == FinishReason::kStop && choice.stop_match) {
    head["stop_sequence"] = *choice.stop_match;
  }
  head["usage"] = FinalUsage(answer);
  head["kvasir"] = FinalReceipt(answer);
  co_yield BeginObject(head) + "\"content\":[";
  co_yield ContentParts(choice);
  co_yield "]}";
}

}  // namespace kvasir
