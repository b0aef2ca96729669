#include "api/ollama_writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/openai_json.h"
#include "base/clock.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string LineOf(const json& object) { return Dump(object) + "\n"; }

// Returns a call with its arguments as an object; those that max_tokens has cut off are empty.
json CallJson(const ToolCall& call) {
  json arguments = json::parse(call.arguments, nullptr, false);
  if (!arguments.is_object()) arguments = json::object();
  return {{"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
}

int64_t NsOf(double ms) { return std::llround(ms * 1e6); }

std::string TimeNow() {
  const int64_t now_ns = UnixNs();
  const std::time_t now_s = now_ns / 1'000'000'000;
  return fmt::format("{:%FT%T}.{:09}Z", fmt::gmtime(now_s), now_ns % 1'000'000'000);
}

std::string TextLine(const TextFrame& frame, std::string_view text) {
  return frame.Around(text) + "\"created_at\":\"" + TimeNow() + "\"}\n";
}

}  // namespace

json OllamaWriter::Line(const Answer& answer, std::string_view content, json message) const {
  json line = {{"model", answer.spec().model}, {"created_at", TimeNow()}, {"done", false}};
  if (form_.generates) {
    line["response"] = content;
    line.update(message);
  } else {
    message["role"] = "assistant";
    message["content"] = content;
    line["message"] = std::move(message);
  }
  return line;
}

json OllamaWriter::Final(const Answer& answer, json line) const {
  const Receipt& receipt = answer.receipt();
  const Timings& timings = answer.timings();
  line["done"] = true;
  line["done_reason"] = answer.choice(0).finish == FinishReason::kLength ? "length" : "stop";
  line["load_duration"] = 0;  // a model stays loaded
  line["prompt_eval_count"] = receipt.prompt_tokens;
  line["prompt_eval_duration"] = NsOf(timings.prompt_ms);
  line["eval_count"] = answer.completion_tokens();
  line["eval_duration"] = NsOf(timings.predicted_ms);
  line["total_duration"] = NsOf(receipt.ttft_ms + timings.predicted_ms);
  if (form_.context) line["context"] = *form_.context;
  line["kvasir"] = FinalReceipt(answer);
  return line;
}

json OllamaWriter::Load(const Answer& answer) const {
  json line = Line(answer, "", json::object());
  line["done"] = true;
  line["done_reason"] = form_.unloads ? "unload" : "load";
  return line;
}

void OllamaWriter::Begin(const Answer& answer) {
  const std::string head = R"({"done":false,"model":)" + Quoted(answer.spec().model) + ",";
  if (form_.generates) {
    content_ = {head + R"("response":)", ","};
    thought_ = {head + R"("response":"","thinking":)", ","};
  } else {
    const std::string message = head + R"("message":{"role":"assistant","content":)";
    content_ = {message, "},"};
    thought_ = {message + R"("","thinking":)", "},"};
  }
}

void OllamaWriter::See(const Answer&, const Answer::Step&, const Event& event) {
  if (!form_.context) return;
  for (const GeneratedToken& token : event.tokens) form_.context->push_back(token.id);
}

std::string OllamaWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                     const Event& event) {
  std::string out;
  if (!answer.choice(step.choice).read && !event.text.empty()) {
    out = TextLine(content_, event.text);
  }
  for (const AnswerEvent& piece : step.pieces) out += Take(answer, piece);
  return out;
}

std::string OllamaWriter::Take(const Answer& answer, const AnswerEvent& piece) {
  switch (piece.kind) {
    case AnswerEvent::Kind::kReasoning:
      return TextLine(thought_, piece.text);
    case AnswerEvent::Kind::kContent:
      return TextLine(content_, piece.text);
    case AnswerEvent::Kind::kCallBegin:
      call_ = {piece.text, "", piece.id};
      return "";
    case AnswerEvent::Kind::kArguments:
      call_.arguments += piece.text;
      return "";
    case AnswerEvent::Kind::kCallEnd:
      return LineOf(Line(answer, "", {{"tool_calls", json::array({CallJson(call_)})}}));
  }
  return "";
}

std::string OllamaWriter::EndEvents(const Answer& answer, size_t) {
  return LineOf(Final(answer, Line(answer, "", json::object())));
}

std::string OllamaWriter::PingEvent(const Answer& answer) {
  return LineOf(Line(answer, "", json::object()));
}

std::string OllamaWriter::ErrorEvent(const Error& error) const {
  return LineOf({{"error", error.text()}});
}

Parts OllamaWriter::Body(const Answer& answer) const {
  if (answer.choices().empty()) {
    co_yield Dump(Load(answer));
    co_return;
  }
  const Answer::Choice& choice = answer.choice(0);
  json message = json::object();
  if (choice.read && !choice.read->reasoning.empty()) message["thinking"] = choice.read->reasoning;
  for (size_t i = 0; choice.read && i < choice.read->calls.size(); ++i) {
    message["tool_calls"].push_back(CallJson(choice.read->calls[i]));
  }
  std::string body = Dump(Final(answer, Line(answer, choice.text, std::move(message))));
  co_yield body;
}

}  // namespace kvasir
