#include "api/responses_writer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "api/openai_json.h"
#include "base/base64.h"
#include "base/clock.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr const char* kDone = "completed";
constexpr auto kRelaxed = std::memory_order_relaxed;

json UsageOf(const Answer& answer) {
  const Receipt& receipt = answer.receipt();
  const uint32_t kept = receipt.kept.value_or(0);
  const uint32_t written = kept - std::min(kept, receipt.cached_tokens());
  return {{"input_tokens", receipt.prompt_tokens},
          {"input_tokens_details",
           {{"cached_tokens", receipt.cached_tokens()}, {"cache_write_tokens", written}}},
          {"output_tokens", answer.completion_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", answer.reasoning_tokens().value_or(0)}}},
          {"total_tokens", receipt.prompt_tokens + answer.completion_tokens()}};
}

}  // namespace

bool ResponsesWriter::IsCut(const Answer& answer) const {
  return !form_.prewarms && answer.choice(0).finish == FinishReason::kLength;
}

void ResponsesWriter::Begin(const Answer& answer) {
  id_ = answer.id();
  model_ = answer.spec().model;
  created_unix_s_ = answer.created_unix_s();
}

uint64_t ResponsesWriter::held_bytes() const {
  const uint64_t open = open_ ? open_->text.capacity() + open_->name.capacity() +
                                    open_->call_id.capacity() + open_->delta.held_bytes()
                              : 0;
  return sizeof(*this) + id_.capacity() + model_.capacity() + items_.capacity() +
         form_.tool_choice.capacity() + form_.metadata.capacity() + open;
}

std::string ResponsesWriter::ItemId(Kind kind, size_t index) const {
  const char* prefix = kind == Kind::kText ? "msg" : kind == Kind::kThought ? "rs" : "fc";
  return fmt::format("{}_{}{:02}", prefix, id_.substr(id_.find('_') + 1), index);
}

json ResponsesWriter::Envelope(const char* status) const {
  json envelope = {{"id", id_},
                   {"object", "response"},
                   {"created_at", created_unix_s_},
                   {"status", status},
                   {"model", model_},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"instructions", nullptr},
                   {"max_output_tokens", nullptr},
                   {"metadata", json::parse(form_.metadata)},
                   {"output", json::array()},
                   {"parallel_tool_calls", form_.parallel_calls},
                   {"previous_response_id", nullptr},
                   {"store", form_.stored && form_.stored->is_stored.load(kRelaxed)},
                   {"temperature", form_.temperature},
                   {"tool_choice", json::parse(form_.tool_choice)},
                   {"tools", json::array()},
                   {"top_p", form_.top_p},
                   {"truncation", form_.drops_oldest ? "auto" : "disabled"},
                   {"usage", nullptr}};
  if (!form_.previous.empty()) envelope["previous_response_id"] = form_.previous;
  if (form_.max_tokens) envelope["max_output_tokens"] = *form_.max_tokens;
  return envelope;
}

json ResponsesWriter::FinalEnvelope(const Answer& answer) const {
  json envelope = Envelope(IsCut(answer) ? "incomplete" : kDone);
  if (IsCut(answer)) envelope["incomplete_details"] = {{"reason", "max_output_tokens"}};
  const int64_t completed_s = form_.stored ? form_.stored->completed_s.load(kRelaxed) : 0;
  envelope["completed_at"] = completed_s > 0 ? completed_s : UnixS();
  envelope["usage"] = UsageOf(answer);
  AddCacheDiagnostics(answer, &envelope);
  envelope["kvasir"] = FinalReceipt(answer);
  envelope.erase("output");
  return envelope;
}

// Returns an item without its text.
json ResponsesWriter::HeadOf(const Item& item, size_t index, const char* status) const {
  json object = {{"id", ItemId(item.kind, index)}, {"status", status}};
  switch (item.kind) {
    case Kind::kCall:
      object["type"] = "function_call";
      object["call_id"] = item.call_id;
      object["name"] = item.name;
      break;
    case Kind::kThought:
      object["type"] = "reasoning";
      object["summary"] = json::array();
      break;
    case Kind::kText:
      object["type"] = "message";
      object["role"] = "assistant";
      break;
  }
  return object;
}

TextFrame ResponsesWriter::FrameOf(const Item& item, size_t index, const char* status) const {
  const std::string head = BeginObject(HeadOf(item, index, status));
  switch (item.kind) {
    case Kind::kCall:
      return {head + "\"arguments\":", "}"};
    case Kind::kThought:
      return {head + R"("content":[{"type":"reasoning_text","text":)", "}]}"};
    case Kind::kText:
      return {head + R"("content":[{"type":"output_text","annotations":[],"logprobs":[],"text":)",
              "}]}"};
  }
  return {};
}

// Writes the whole item; of a thought with what is to be sent back, if that was asked for.
std::string ResponsesWriter::TextOf(const Item& item, size_t index, const char* status) const {
  TextFrame frame = FrameOf(item, index, status);
  if (item.kind == Kind::kThought && form_.encodes_thoughts) {
    frame.end.insert(2, ",\"encrypted_content\":\"" + EncodeBase64(item.text) + "\"");
  }
  return frame.Around(item.text);
}

std::string ResponsesWriter::Named(const char* type, json fields) {
  fields["type"] = type;
  fields["sequence_number"] = next_number_++;
  return fmt::format("event: {}\n", type) + SseEvent(fields);
}

json ResponsesWriter::ItemFields(const char* type) const {
  json fields = {
      {"type", type}, {"output_index", num_items_}, {"item_id", ItemId(open_->kind, num_items_)}};
  if (open_->kind != Kind::kCall) fields["content_index"] = 0;
  return fields;
}

std::string ResponsesWriter::ItemEvent(const char* type, json fields) {
  fields.update(ItemFields(type));
  return Named(type, std::move(fields));
}

TextFrame ResponsesWriter::DeltaFrame() const {
  const char* type = open_->kind == Kind::kThought ? "response.reasoning_text.delta"
                     : open_->kind == Kind::kText  ? "response.output_text.delta"
                                                   : "response.function_call_arguments.delta";
  json fields = ItemFields(type);
  if (open_->kind == Kind::kText) fields["logprobs"] = json::array();
  return {fmt::format("event: {}\ndata: {}\"delta\":", type, BeginObject(fields)),
          ",\"sequence_number\":"};
}

std::string ResponsesWriter::TextEvent(const char* type, const char* name,
                                       const std::string& object, json fields) {
  fields["type"] = type;
  fields["sequence_number"] = next_number_++;
  return fmt::format("event: {}\ndata: {}\"{}\":{}}}\n\n", type, BeginObject(fields), name, object);
}

std::string ResponsesWriter::Start() {
  if (next_number_ > 0) return "";
  const std::string envelope = Dump(Envelope("in_progress"));
  std::string out = TextEvent("response.created", "response", envelope, json::object());
  return out += TextEvent("response.in_progress", "response", envelope, json::object());
}

std::string ResponsesWriter::PingEvent(const Answer&) {
  if (next_number_ == 0) return Start();
  return Named("response.in_progress", {{"response", Envelope("in_progress")}});
}

std::string ResponsesWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                        const Event& event) {
  std::string out = Start();
  if (!answer.choice(step.choice).read && !event.text.empty()) {
    out += Take({AnswerEvent::Kind::kContent, event.text, ""});
  }
  for (const AnswerEvent& piece : step.pieces) out += Take(piece);
  return out;
}

std::string ResponsesWriter::Take(const AnswerEvent& piece) {
  std::string out;
  switch (piece.kind) {
    case AnswerEvent::Kind::kReasoning:
      out = BeginItem({.kind = Kind::kThought});
      return out += Add(piece.text);
    case AnswerEvent::Kind::kContent:
      out = BeginItem({.kind = Kind::kText});
      return out += Add(piece.text);
    case AnswerEvent::Kind::kCallBegin:
      return BeginItem({.kind = Kind::kCall, .call_id = piece.id, .name = piece.text});
    case AnswerEvent::Kind::kArguments:
      return Add(piece.text);
    case AnswerEvent::Kind::kCallEnd:
      return Close(kDone);
  }
  return out;
}

std::string ResponsesWriter::BeginItem(Item item) {
  if (open_ && open_->kind == item.kind && item.kind != Kind::kCall) return "";
  std::string out = Close(kDone);
  open_ = std::move(item);
  open_->delta = DeltaFrame();
  json added = HeadOf(*open_, num_items_, "in_progress");
  if (open_->kind == Kind::kCall) {
    added["arguments"] = "";
  } else {
    added["content"] = json::array();
  }
  if (open_->kind == Kind::kThought && form_.encodes_thoughts) added["encrypted_content"] = "";
  out += Named("response.output_item.added",
               {{"output_index", num_items_}, {"item", std::move(added)}});
  if (open_->kind != Kind::kText) return out;
  return out + ItemEvent("response.content_part.added", {{"part",
                                                          {{"type", "output_text"},
                                                           {"text", ""},
                                                           {"annotations", json::array()},
                                                           {"logprobs", json::array()}}}});
}

std::string ResponsesWriter::Add(std::string_view text) {
  open_->text += text;
  return open_->delta.Around(text) + std::to_string(next_number_++) + "}\n\n";
}

std::string ResponsesWriter::Close(const char* status) {
  if (!open_) return "";
  std::string out;
  const std::string& text = open_->text;
  switch (open_->kind) {
    case Kind::kThought:
      out = ItemEvent("response.reasoning_text.done", {{"text", text}});
      break;
    case Kind::kText:
      out = ItemEvent("response.output_text.done", {{"text", text}, {"logprobs", json::array()}});
      out += ItemEvent("response.content_part.done", {{"part",
                                                       {{"type", "output_text"},
                                                        {"text", text},
                                                        {"annotations", json::array()},
                                                        {"logprobs", json::array()}}}});
      break;
    case Kind::kCall:
      out = ItemEvent("response.function_call_arguments.done",
                      {{"arguments", text}, {"name", open_->name}});
      break;
  }
  const std::string item = TextOf(*open_, num_items_, status);
  out += TextEvent("response.output_item.done", "item", item, {{"output_index", num_items_}});
  items_.append(items_.empty() ? "" : ",").append(item);
  ++num_items_;
  open_.reset();
  return out;
}

std::string ResponsesWriter::EndEvents(const Answer& answer, size_t) {
  std::string out = Close(IsCut(answer) ? "incomplete" : kDone);
  const std::string response = BeginObject(FinalEnvelope(answer)) + "\"output\":[" + items_ + "]}";
  return out + TextEvent(IsCut(answer) ? "response.incomplete" : "response.completed", "response",
                         response, json::object());
}

std::string ResponsesWriter::ErrorEvent(const Error& error) const {
  const json said = json::parse(ErrorObject(error));
  json response = Envelope("failed");
  response["error"] = {{"code", said.at("code")}, {"message", said.at("message")}};
  const char* type = "response.failed";
  return fmt::format("event: {}\n", type) +
         SseEvent({{"type", type}, {"sequence_number", next_number_}, {"response", response}});
}

Parts ResponsesWriter::Body(const Answer& answer) const {
  co_yield BeginObject(FinalEnvelope(answer)) + "\"output\":[";
  size_t index = 0;
  const std::vector<PartOfAnswer> parts = PartsOf(answer.choice(0));
  for (const PartOfAnswer& part : parts) {
    if (index > 0) co_yield ",";
    Item item{.kind = part.kind, .text = std::string(part.text), .call_id = {}, .name = {}};
    if (part.call) {
      item.text = part.call->arguments;
      item.call_id = part.call->id;
      item.name = part.call->name;
    }
    const bool is_last = index + 1 == parts.size();
    co_yield TextOf(item, index, is_last && IsCut(answer) ? "incomplete" : kDone);
    ++index;
  }
  co_yield "]}";
}

}  // namespace kvasir
