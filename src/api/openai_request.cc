#include "api/openai_request.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "api/adapter_fields.h"
#include "api/cache_marks.h"
#include "api/chat_spans.h"
#include "api/infill_prompt.h"
#include "api/llama_request.h"
#include "api/openai_writer.h"
#include "api/raw_prompts.h"
#include "api/request_limits.h"

namespace kvasir {
namespace {

constexpr uint32_t kDefaultCompletionTokens = 16;  // of /v1/completions, as OpenAI's and vLLM's

void ReadChatLogprobs(JsonFields& fields, AnswerSpec* spec) {
  bool wanted = false;
  uint32_t top = 0;
  fields.Bool("logprobs", &wanted);
  fields.Unsigned("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (!wanted && top > 0) fields.Fail("top_logprobs", "needs logprobs: true");
  if (wanted) spec->logprobs = top;
}

void ReadCompletionLogprobs(JsonFields& fields, AnswerSpec* spec) {
  if (const auto top = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    spec->logprobs = static_cast<uint32_t>(*top);
  }
}

void ReadReadingFields(JsonFields& fields, const ModelView& model, ReadingFields* asked) {
  asked->thoughts = model.thoughts;
  if (fields.Has("reasoning_format")) {
    std::string format;
    fields.String("reasoning_format", &format);
    if (const auto form = ThoughtFormOf(format)) {
      asked->thoughts = *form;
    } else {
      fields.Refuse("reasoning_format",
                    R"("auto", "deepseek" (the same), "deepseek-legacy" or "none")");
    }
  }
  fields.Bool("parallel_tool_calls", &asked->parallel_calls);
  asked->tool_choice = ReadToolChoice(fields);
  if (model.think) asked->max_thought_tokens = model.max_thought_tokens;
  for (const char* name : {"reasoning_budget_tokens", "thinking_budget_tokens"}) {  // llama.cpp's
    if (!model.think) break;  // as there: they say nothing to models without thoughts
    const auto most = fields.Integer(name, -1, UINT32_MAX);
    if (!most) continue;
    asked->max_thought_tokens.reset();  // -1: no limit
    if (*most >= 0) asked->max_thought_tokens = static_cast<uint32_t>(*most);
  }
  if (const auto most = fields.Integer("max_reasoning_tokens", 0, UINT32_MAX)) {
    asked->max_thought_tokens = static_cast<uint32_t>(*most);
    if (!model.think) {
      fields.Fail("max_reasoning_tokens", "the chat template has no marks of thoughts");
    }
  }
}

ToolSpec SpecOf(const JsonValue& function) {
  ToolSpec tool;
  tool.name = function.Find("name")->text();
  const JsonValue* parameters = function.Find("parameters");
  const JsonValue* properties = parameters ? parameters->Find("properties") : nullptr;
  if (!properties || !properties->is_object()) return tool;
  for (const auto& [key, schema] : properties->members()) {
    const JsonValue* type = schema.Find("type");
    if (type && type->is_string() && type->text() == "string") {
      tool.text_parameters.emplace_back(key);
    }
  }
  return tool;
}

}  // namespace

std::vector<TokenId> SpecialMarks(const ModelView& model) {
  std::vector<std::string_view> marks;
  if (model.calls) marks = MarksOf(*model.calls);
  if (model.think) marks.insert(marks.end(), {model.think->open, model.think->close});
  std::vector<TokenId> ids;
  for (const std::string_view mark : marks) {
    const auto id = model.tokenizer->IdOf(mark);
    if (id && model.tokenizer->IsSpecial(*id)) ids.push_back(*id);
  }
  return ids;
}

namespace {

Status CheckChoice(const ToolChoice& choice, const std::vector<AnswerFormat::Tool>& tools) {
  if (!choice.must_call) return {};
  if (tools.empty()) {
    return FailField(Code::kInvalidArgument, "tool_choice",
                     "needs `tools` with the function to call");
  }
  if (choice.only &&
      std::ranges::find(tools, *choice.only, &AnswerFormat::Tool::name) == tools.end()) {
    return FailField(Code::kInvalidArgument, "tool_choice", "the function \"{}\" is not in `tools`",
                     *choice.only);
  }
  return {};
}

// Returns the functions that answers may call.
std::vector<AnswerFormat::Tool> FunctionsOf(const JsonValue* tools) {
  std::vector<AnswerFormat::Tool> read;
  for (const JsonValue& tool : tools ? tools->items() : std::span<const JsonValue>()) {
    const JsonValue& function = FunctionOf(tool);
    AnswerFormat::Tool& one = read.emplace_back();
    one.name = function.Find("name")->text();
    const JsonValue* parameters = function.Find("parameters");
    if (parameters && !parameters->is_null()) one.parameters = TextOf(*parameters);
    const JsonValue* strict = function.Find("strict");
    one.is_strict = strict && strict->is_bool() && strict->boolean();
  }
  return read;
}

// Sets what the answers may be, beside a text that ReadGenerationFields has read.
Status SetFormat(std::vector<AnswerFormat::Tool> tools, const AnswerReading& reading,
                 OpenAiCall* call) {
  const ReadingFields& asked = call->reading;
  KV_TRY(CheckChoice(asked.tool_choice, tools));
  GenerateRequest& request = call->requests.front();
  const bool calls = reading.calls && !tools.empty();
  const auto max_thought = reading.think ? asked.max_thought_tokens : std::nullopt;
  if (!request.format && !calls && !max_thought) return {};
  if (!request.format) request.format.emplace();
  AnswerFormat& format = *request.format;
  format.think = reading.think;
  format.begins_inside_thought = reading.begins_inside_thought;
  format.max_thought_tokens = max_thought;
  if (!calls) return {};
  if (asked.tool_choice.only) {
    std::erase_if(tools, [&](const auto& tool) { return tool.name != *asked.tool_choice.only; });
  }
  format.tools = std::move(tools);
  format.must_call = asked.tool_choice.must_call;
  format.parallel_calls = asked.parallel_calls && !asked.tool_choice.only;
  format.calls = reading.calls;
  return {};
}

}  // namespace

Status SetReading(const JsonValue* tools, PromptThought thought, const ModelView& model,
                  OpenAiCall* call) {
  const ReadingFields& asked = call->reading;
  AnswerReading reading;
  if (thought != PromptThought::kClosed) reading.think = model.think;
  reading.thoughts = asked.thoughts;
  reading.begins_inside_thought = thought == PromptThought::kInside;
  reading.parallel = asked.parallel_calls;
  for (const JsonValue& tool : tools ? tools->items() : std::span<const JsonValue>()) {
    reading.tools.push_back(SpecOf(FunctionOf(tool)));
  }
  if (asked.tool_choice.reads_calls && !reading.tools.empty()) reading.calls = model.calls;
  KV_TRY(SetFormat(FunctionsOf(tools), reading, call));
  const std::optional<AnswerFormat>& format = call->requests.front().format;
  reading.marked_calls_are_certain = format && format->calls != nullptr;
  reading.bare_calls_are_certain = reading.marked_calls_are_certain && format->must_call;
  if (reading.calls || reading.think) call->requests.front().shown_special = model.special_marks;
  if (reading.calls || (model.think && reading.thoughts != ThoughtForm::kInContent)) {
    call->spec.reading = std::make_shared<const AnswerReading>(std::move(reading));
  }
  return {};
}

Result<std::string> ReadModel(JsonFields& fields, const ModelView& model) {
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  return CheckModel(name, model);
}

Result<std::vector<TokenId>> EncodeText(std::string_view text, const std::string& field,
                                        const EncodeOptions& options, const ModelView& model) {
  if (!model.tokenizer) {
    return tl::unexpected(NoTextError(field, model));
  }
  auto ids = model.tokenizer->Encode(text, options);
  if (!ids) return tl::unexpected(EncodeError(ids.error(), field, options.max_tokens, model));
  return std::move(*ids);
}

Result<std::string> DecodeIds(std::span<const TokenId> ids, const std::string& field,
                              const ModelView& model) {
  std::string text;
  const auto decoder = model.tokenizer->StartDecoder(SpecialTokens::kShow);
  for (const TokenId id : ids) {
    decoder->Append(id, &text);
    if (text.size() > model.max_decoded_bytes) break;
  }
  if (text.size() <= model.max_decoded_bytes) decoder->Finish(&text);
  if (text.size() <= model.max_decoded_bytes) return text;
  return FailField(Code::kInvalidArgument, field, "the ids stand for more than {} bytes of text",
                   model.max_decoded_bytes);
}

Result<OpenAiCall> BeginChat(JsonFields& fields, const ModelView& model) {
  OpenAiCall call;
  GenerateRequest& request = call.requests.emplace_back();
  call.spec.id_prefix = "chatcmpl-";
  KV_ASSIGN(call.spec.model, ReadModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec, &call.asked);
  ReadChatLogprobs(fields, &call.spec);
  ReadReadingFields(fields, model, &call.reading);
  RefuseUnsupported(fields);
  CacheOptions cache = ReadCacheOptions(fields);
  if (cache.prewarms) request.max_tokens = request.min_tokens = 0;
  call.spec.compared = std::move(cache.compared);
  if (request.spans && !request.spans->spans.empty()) {
    fields.Fail("cache.spans",
                "is for completions of ids; text parts of a chat have \"span\": true instead");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  request.logprobs = call.spec.logprobs;
  return call;
}

Status SetPrompt(ChatPrompt prompt, const JsonFields& fields, const ModelView& model,
                 OpenAiCall* call) {
  GenerateRequest& request = call->requests.front();
  request.prompt = std::move(prompt.ids);
  request.message_ends = std::move(prompt.message_ends);
  request.begins_with_system = prompt.begins_with_system;
  KV_TRY(CheckLength(request.prompt.size(), request, "messages", model));
  request.clock_in_prompt = prompt.clock_in_prompt;
  request.cured = prompt.cured;
  const size_t first = prompt.marks.size() - std::min(prompt.marks.size(), request.kMaxKeeps);
  for (size_t i = first; i < prompt.marks.size(); ++i) {
    request.keeps.push_back({request.message_ends[prompt.marks[i].message], prompt.marks[i].ttl_s});
  }
  call->head = std::move(prompt.head);
  call->head.tokens = static_cast<uint32_t>(request.prompt.size());
  call->head.parts = HeadPartsOf(fields, model.heads);
  request.ignored = fields.Unread();
  std::ranges::copy(PathsOf(prompt.unseen), std::back_inserter(request.ignored));
  using Kind = jinja::ChatPart::Kind;
  std::erase_if(prompt.unseen, [](const jinja::ChatPart& part) {
    return part.kind == Kind::kMember || part.kind == Kind::kVariable;
  });
  call->unseen = PathsOf(prompt.unseen);
  return {};
}

namespace {

Result<GenerationCall> End(OpenAiCall call, bool chat, const ModelView& model) {
  OpenAiForm form = {.chat = chat,
                     .include_usage = call.asked.include_usage,
                     .return_token_ids = call.asked.return_token_ids,
                     .return_tokens = call.asked.return_tokens,
                     .verbosely = {}};
  if (call.asked.verbose) {
    KV_ASSIGN(VerboseSpec said, VerboseOf(call.requests, call.spec, call.asked, model));
    form.verbosely = std::make_shared<const VerboseSpec>(std::move(said));
  }
  return GenerationCall{.requests = std::move(call.requests),
                        .spec = std::move(call.spec),
                        .writer = std::make_unique<OpenAiWriter>(std::move(form)),
                        .slot = call.asked.slot,
                        .unseen = std::move(call.unseen),
                        .head = std::move(call.head)};
}

}  // namespace

Result<GenerationCall> EndChat(OpenAiCall call, const ModelView& model) {
  return End(std::move(call), /*chat=*/true, model);
}

Result<OpenAiCall> ReadChat(JsonFields& fields, JsonTree* tree, const ModelView& model) {
  KV_ASSIGN(OpenAiCall call, BeginChat(fields, model));
  KV_ASSIGN(RenderedChat chat, RenderMessages(fields, tree, model));
  if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
  chat.max_tokens = MaxTextTokens(call.requests.front(), model);
  KV_ASSIGN(SpannedPrompt spanned, EncodeSpans(fields, chat, model));
  ChatPrompt prompt = std::move(spanned.prompt);
  if (!spanned.spans.empty()) {
    auto& spans = call.requests.front().spans;
    if (!spans) spans.emplace();
    spans->spans = std::move(spanned.spans);
  }
  KV_TRY(SetReading(fields.Find("tools"), prompt.thought, model, &call));
  KV_TRY(SetPrompt(std::move(prompt), fields, model, &call));
  return call;
}

Result<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  KV_ASSIGN(OpenAiCall call, ReadChat(fields, &parsed.tree, model));
  return EndChat(std::move(call), model);
}

namespace {

// Reads all fields of a completion but its prompt, and makes one request.
Result<OpenAiCall> BeginCompletion(JsonFields& fields, const ModelView& model,
                                   uint32_t most_tokens) {
  OpenAiCall call;
  GenerateRequest& request = call.requests.emplace_back();
  request.max_tokens = most_tokens;
  KV_ASSIGN(call.spec.model, ReadModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec, &call.asked);
  ReadCompletionLogprobs(fields, &call.spec);
  if (ReadToolChoice(fields).must_call) fields.Fail("tool_choice", "is for chat completions");
  RefuseUnsupported(fields);
  request.logprobs = call.spec.logprobs;
  return call;
}

}  // namespace

Result<OpenAiCall> ReadInfill(JsonFields& fields, const ModelView& model) {
  KV_TRY(CheckInfill(model));
  KV_ASSIGN(OpenAiCall call, BeginCompletion(fields, model, UINT32_MAX));
  GenerateRequest& request = call.requests.front();
  KV_TRY(CheckSpans({}, request));
  KV_ASSIGN(request.prompt, InfillPrompt(fields, model, MaxTextTokens(request, model)));
  KV_TRY(CheckLength(request.prompt.size(), request, "input_prefix", model));
  AddInfillEnds(model, &request);
  request.ignored = fields.Unread();
  return call;
}

Result<OpenAiCall> ReadCompletion(JsonFields& fields, const ModelView& model,
                                  uint32_t most_tokens) {
  KV_ASSIGN(OpenAiCall call, BeginCompletion(fields, model, most_tokens));
  GenerateRequest request = std::move(call.requests.front());
  call.requests.clear();
  bool echo = false;
  fields.Bool("echo", &echo);
  EncodeOptions options;
  options.max_tokens = MaxTextTokens(request, model);
  fields.Bool("add_special_tokens", &options.add_special);
  fields.Bool("add_special", &options.add_special);
  fields.Bool("parse_special", &options.parse_special);
  if (echo && !model.tokenizer) fields.Fail("echo", "needs a tokenizer");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (echo && request.logprobs) {
    request.scores_prompt = true;
    request.reuse = Reuse::kNothing;  // rows from the cache have no log probabilities
  }
  KV_ASSIGN(const auto list, ListPrompts(fields, request.n, model));
  KV_TRY(CheckSpans(list, request));
  request.ignored = fields.Unread();
  RawPrompts prompts;
  for (const JsonValue* one : list) {
    KV_ASSIGN(prompts.emplace_back(), IdsOf(*one, options, model));
    KV_TRY(CheckLength(prompts.back().size(), request, "prompt", model));
  }
  if (echo) {
    KV_ASSIGN(call.spec.echo, EchoOf(list, prompts, model));
  }
  for (std::vector<TokenId>& ids : prompts) {
    if (request.scores_prompt) {
      call.spec.scored_from.push_back(ids.front());
      call.spec.scored_tokens += ids.size() * request.n;
    }
    call.requests.emplace_back(request).prompt = std::move(ids);
  }
  return call;
}

Result<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kCompletionIds));
  JsonFields fields(parsed.fields);
  KV_ASSIGN(OpenAiCall call, ReadCompletion(fields, model, kDefaultCompletionTokens));
  return End(std::move(call), /*chat=*/false, model);
}

}  // namespace kvasir
