// GET /openapi.json: every path of this server, for clients that are generated and for tests.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/service_routes.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

// What a path does, and the properties of its body, as JSON Schema. Fields that are not named are
// taken too (docs/api.md has all of them).
struct Described {
  std::string_view route;  // method and path
  const char* summary;
  const char* properties = nullptr;  // of the body; nullptr: it takes no body
  // What a body must have: fields, or another condition. Absent: no body will do too.
  const char* required = nullptr;
};

constexpr const char* kSampling =
    R"("max_tokens":{"type":"integer","minimum":-1},"max_completion_tokens":{"type":"integer","minimum":-1},
    "n_predict":{"type":"integer","minimum":-1},"min_tokens":{"type":"integer","minimum":0},
    "temperature":{"type":"number","minimum":0,"maximum":100},"top_k":{"type":"integer","minimum":-1},
    "top_p":{"type":"number","minimum":0,"maximum":1},"min_p":{"type":"number","minimum":0,"maximum":1},
    "repetition_penalty":{"type":"number","minimum":0.01,"maximum":100},
    "repeat_penalty":{"type":"number","minimum":0.01,"maximum":100},
    "presence_penalty":{"type":"number","minimum":-2,"maximum":2},
    "frequency_penalty":{"type":"number","minimum":-2,"maximum":2},
    "repeat_last_n":{"type":"integer","minimum":-1},"logit_bias":{"type":["object","array"]},
    "samplers":{"type":["string","array"],"items":{"type":"string","minLength":1}},
    "n_indent":{"type":"integer","minimum":0},"seed":{"type":"integer"},"ignore_eos":{"type":"boolean"},
    "stop":{"type":["string","array"],"minLength":1,"maxItems":16,"items":{"type":"string","minLength":1}},
    "stop_token_ids":{"type":"array","items":{"type":"integer","minimum":0}},
    "n":{"type":"integer","minimum":1,"maximum":128},"best_of":{"type":"integer","minimum":1},
    "stream":{"type":"boolean"},"stream_options":{"type":"object"},
    "priority":{"type":"integer"},"timeout_ms":{"type":"integer","minimum":1},
    "cache_salt":{"type":"string","minLength":1},"cache_prompt":{"type":"boolean"},
    "cache":{"type":"object"},"user":{"type":"string"},"model":{"type":"string"},
    "skip_special_tokens":{"type":"boolean"},"return_token_ids":{"type":"boolean"},
    "return_tokens":{"type":"boolean"},"timings_per_token":{"type":"boolean"},
    "return_progress":{"type":"boolean"},"verbose":{"type":"boolean"},
    "response_format":{"type":"object","required":["type"],
    "properties":{"type":{"enum":["text","json_object","json_schema"]}}},
    "json_schema":{"type":["object","boolean","string"]},"grammar":{"type":"string"},
    "guided_json":{"type":["object","boolean","string"]},"guided_regex":{"type":"string"},
    "guided_choice":{"type":"array","items":{"type":"string"}},"guided_grammar":{"type":"string"},
    "structured_outputs":{"type":"object"})";
// Of chats: what answers may have apart from their content.
constexpr const char* kAnswers =
    R"("tool_choice":{"anyOf":[{"enum":["none","auto","required"]},{"type":"object",
    "required":["type","function"]}]},"max_reasoning_tokens":{"type":"integer","minimum":0},"parallel_tool_calls":{"type":"boolean"},
    "reasoning_format":{"enum":["auto","deepseek","deepseek-legacy","none"]},"logprobs":{"type":"boolean"},
    "top_logprobs":{"type":"integer","minimum":0,"maximum":20})";
// Of chats and /apply-template: what templates read, and how the prompt ends.
constexpr const char* kTemplate =
    R"("chat_template_kwargs":{"type":"object"},"chat_template_name":{"type":"string"},
    "add_generation_prompt":{"type":"boolean"},
    "continue_final_message":{"enum":[true,false,"content","reasoning_content"]},
    "documents":{"type":"array","items":{"type":"object"}})";
constexpr const char* kSpecials =
    R"("add_special":{"type":"boolean"},"parse_special":{"type":"boolean"})";
constexpr const char* kCompletion =
    R"("echo":{"type":"boolean"},"logprobs":{"type":"integer","minimum":0,"maximum":20},
    "add_special_tokens":{"type":"boolean"})";
constexpr const char* kTools =
    R"("tools":{"type":"array","items":{"type":"object",
    "anyOf":[{"required":["function"]},{"required":["name"]}],
    "properties":{"name":{"type":"string","minLength":1},"function":{"type":"object","required":["name"],
    "properties":{"name":{"type":"string","minLength":1}}}}}})";
// Of llama.cpp's server.
constexpr const char* kAnyPrompt =
    R"("prompt":{"type":["string","array","object"],"minLength":1,"minItems":1,
    "properties":{"prompt_string":{"type":["string","array"],"minLength":1,"minItems":1}}})";
constexpr const char* kLlama =
    R"("n_probs":{"type":"integer","minimum":0,"maximum":20},
    "post_sampling_probs":{"type":"boolean"},"t_max_predict_ms":{"type":"integer","minimum":-1},
    "response_fields":{"type":["array","string"],"items":{"type":"string"}},
    "n_cmpl":{"type":"integer","minimum":1,"maximum":128},
    "id_slot":{"type":"integer","minimum":-1})";
constexpr const char* kMessages =
    R"("messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role"],
    "properties":{"role":{"enum":["system","developer","user","assistant","tool"]},
    "content":{"type":["string","array","null"]},"reasoning_content":{},
    "tool_calls":{"type":["array","null"],"items":{"type":"object"}},"tool_call_id":{}}}})";
constexpr const char* kSegments =
    R"("segments":{"type":["array","null"],"maxItems":1024,"items":{"type":"object",
    "required":["name","begin","end"],"properties":{"name":{"type":"string","minLength":1},
    "begin":{"type":"integer","minimum":0},"end":{"type":"integer","minimum":1}}}})";
constexpr const char* kSessionId = "^sess_[0-9a-f]{32}$";
constexpr const char* kCount = R"("messages":{"type":"integer","minimum":0})";

// `messages` of a session: at least `least` of them.
std::string SessionMessages(std::string_view least) {
  return fmt::format(
      R"("messages":{{"type":"array","minItems":{},"items":{{"type":"object","required":["role"],
      "properties":{{"role":{{"enum":["system","developer","user","assistant","tool"]}},
      "content":{{"type":["string","array","null"]}},{}}}}}}})",
      least, kSegments);
}

std::string Joined(std::string_view first, std::string_view second) {
  return fmt::format("{},{}", first, second);
}

constexpr Described kDescribed[] = {
    {"POST /v1/chat/completions", "Answers a chat.", "chat", R"(["messages"])"},
    {"POST /v1/completions", "Continues a text, or token ids.", "completion", R"(["prompt"])"},
    {"POST /v1/translations", "Translates texts.", "translation", R"(["text","source","target"])"},
    {"POST /translate", "Translates texts, for clients of LibreTranslate.", "libre",
     R"(["q","source","target"])"},
    {"GET /languages", "The languages of the model, as LibreTranslate says them."},
    {"POST /completion", "Continues a prompt, in the form of llama.cpp's server.", "llama",
     R"(["prompt"])"},
    {"POST /completions", "The same as /completion.", "llama", R"(["prompt"])"},
    {"POST /infill", "Fills in the middle of a text, in the form of llama.cpp's server.", "infill",
     R"(["input_prefix","input_suffix"])"},
    {"GET /slots", "The caller's requests that run, as slots of llama.cpp's server."},
    {"POST /slots/{id}", "Saves, restores or erases a slot; 501 without --slot-save-path.",
     R"("filename":{"type":"string"})"},
    {"GET /v1/models", "The names of the model."},
    {"GET /v1/models/*", "One name of the model."},
    {"GET /v1/cache", "The plan of the memory, and the state of the cache."},
    {"DELETE /v1/cache", "Erases all that is cached for the caller, and the caller's sessions."},
    {"GET /v1/cache/sequences", "The caller's requests that wait or run."},
    {"GET /v1/cache/prefixes", "What the cache holds of the caller's prompts, as trees."},
    {"GET /v1/cache/tenants", "Tenants, their limits and requests; for the operator."},
    {"POST /v1/cache/flush", "Answers when all that was cached before is on the disk."},
    {"POST /v1/sessions", "Makes a session.", "session"},
    {"GET /v1/sessions", "The caller's sessions, the newest first."},
    {"GET /v1/sessions/{id}", "A session with its messages."},
    {"DELETE /v1/sessions/{id}", "Deletes a session and forgets all of it."},
    {"POST /v1/sessions/{id}/messages", "Appends messages.", "append", R"(["messages"])"},
    {"PUT /v1/sessions/{id}/messages/{index}", "Edits a message.", "edit", R"(["content"])"},
    {"PUT /v1/sessions/{id}/system", "Sets the system message.", "content", R"(["content"])"},
    {"POST /v1/sessions/{id}/generate", "Generates the next answer.", "generate"},
    {"POST /v1/sessions/{id}/fork", "Makes a session with the first messages.", "count"},
    {"POST /v1/sessions/{id}/truncate", "Keeps the first messages.", "count", R"(["messages"])"},
    {"POST /v1/sessions/{id}/forget", "Forgets a message or a part of it.", "forget",
     R"({"anyOf":[{"required":["index"]},{"required":["segment"]}]})"},
    {"POST /tokenize", "Text to token ids.",
     R"("content":{"type":"string"},"prompt":{"type":"string"},"add_special":{"type":"boolean"},
     "add_special_tokens":{"type":"boolean"},"parse_special":{"type":"boolean"},
     "with_pieces":{"type":"boolean"})",
     R"({"anyOf":[{"required":["content"]},{"required":["prompt"]}]})"},
    {"POST /detokenize", "Token ids to text.",
     R"("tokens":{"type":"array","items":{"type":"integer","minimum":0}})", R"(["tokens"])"},
    {"POST /v1/chat/completions/input_tokens", "How many tokens the prompt of a chat has.",
     "messages", R"(["messages"])"},
    {"POST /chat/completions/input_tokens", "The same.", "messages", R"(["messages"])"},
    {"POST /v1/messages/count_tokens", "How many tokens the prompt of a call of Anthropic's has.",
     R"("model":{"type":"string"},"system":{"type":["string","array"]},
     "messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],
     "properties":{"role":{"enum":["user","assistant"]},"content":{"type":["string","array"]}}}},
     "tools":{"type":"array","items":{"type":"object","required":["name"]}})",
     R"(["messages"])"},
    {"POST /apply-template", "Messages to the text of the prompt.", "messages", R"(["messages"])"},
    {"GET /props", "Context, template and special tokens."},
    {"GET /health", "200 while the process lives."},
    {"GET /ready", "200 while the server takes requests."},
    {"GET /metrics", "Prometheus text."},
    {"GET /openapi.json", "This description."},
    {"GET /", "Name, version and paths."},
    {"GET /page.css", "How the page at / for browsers looks."},
    {"GET /page.js", "What the page at / for browsers does."},
    {"GET /page.svg", "The icon of the page at / for browsers."},
};

std::string PropertiesOf(std::string_view name) {
  if (name == "chat") {
    return Joined(Joined(PropertiesOf("messages"), kSampling), kAnswers);
  }
  if (name == "completion") {
    return Joined(Joined(kAnyPrompt, kSampling), Joined(kSpecials, kCompletion));
  }
  if (name == "translation") {
    return Joined(kSampling, R"("text":{"type":["string","array"],"minItems":1,
        "items":{"type":"string"}},"source":{"type":"string"},"target":{"type":"string"},
        "beams":{"type":"integer","minimum":1,"maximum":16},"split":{"enum":["none","sentences"]},
        "length_penalty":{"type":"number","minimum":-10,"maximum":10},
        "early_stopping":{"enum":[false,true,"never"]},
        "no_repeat_ngram_size":{"type":"integer","minimum":0,"maximum":1048576})");
  }
  if (name == "libre") {
    return R"("q":{"type":["string","array"],"minItems":1,"items":{"type":"string"}},
        "source":{"type":"string"},"target":{"type":"string"},"format":{"enum":["text"]},
        "alternatives":{"type":"integer","minimum":0,"maximum":15},"api_key":{"type":"string"})";
  }
  if (name == "llama") return Joined(Joined(kLlama, kSpecials), Joined(kAnyPrompt, kSampling));
  if (name == "infill") {
    return Joined(Joined(kLlama, kSampling),
                  R"("input_prefix":{"type":"string"},"input_suffix":{"type":"string"},
        "prompt":{"type":"string"},"input_extra":{"type":"array","items":{"type":"object",
        "required":["text"],"properties":{"text":{"type":"string"},
        "filename":{"type":["string","null"]}}}})");
  }
  if (name == "messages") return Joined(Joined(kMessages, kTools), kTemplate);
  if (name == "append") return SessionMessages("1");
  if (name == "content") return Joined(R"("content":{"type":["string","array"]})", kSegments);
  if (name == "count") return kCount;
  if (name == "edit") return Joined(PropertiesOf("content"), R"("keep_later":{"type":"boolean"})");
  if (name == "generate") {
    return Joined(Joined(SessionMessages("0"), kSampling),
                  Joined(kAnswers, R"("keep_partial":{"type":"boolean"})"));
  }
  if (name == "forget") {
    return R"("index":{"type":"integer","minimum":0},"begin":{"type":"integer","minimum":0},
        "end":{"type":"integer","minimum":1},"segment":{"type":"string"})";
  }
  if (name == "session") {
    return Joined(SessionMessages("0"), R"("model":{"type":"string"},"system":{"type":"string"},
        "tools":{"type":"array","items":{"type":"object"}},
        "chat_template_kwargs":{"type":"object"},"chat_template_name":{"type":"string"},
        "sampling":{"type":"object"},
        "max_context":{"type":"integer","minimum":1},"cache":{"type":"object"},
        "on_full":{"enum":["reject","drop_oldest_turns"]},"ids":{"enum":["exact","canonical"]},
        "prepare":{"type":"boolean"},
        "metadata":{"type":"object","additionalProperties":{"type":"string"}})");
  }
  return std::string(name);
}

// The description of a route; that of the longer path for /chat/completions, /models and others.
const Described* Find(std::string_view method, std::string_view path) {
  for (const std::string prefix : {"", "/v1"}) {
    const std::string route = std::string(method) + " " + prefix + std::string(path);
    const auto* found = std::ranges::find(kDescribed, route, &Described::route);
    if (found != std::end(kDescribed)) return found;
  }
  if (path.starts_with("/v1")) return Find(method, path.substr(3));
  return nullptr;
}

bool Contains(const ordered_json& array, const ordered_json& text) {
  return std::find(array.begin(), array.end(), text) != array.end();
}

// A body's schema. null counts as absent, so that fields may be null unless they are required.
ordered_json BodySchema(const Described& described) {
  ordered_json schema = {
      {"type", "object"},
      {"properties", ordered_json::parse("{" + PropertiesOf(described.properties) + "}")}};
  const ordered_json required = ordered_json::parse(described.required ? described.required : "[]");
  if (required.is_object()) schema.update(required);
  if (required.is_array() && !required.empty()) schema["required"] = required;
  for (auto& [name, property] : schema["properties"].items()) {
    if (required.is_array() && Contains(required, name)) continue;
    if (property.contains("enum")) property["enum"].push_back(nullptr);
    if (!property.contains("type")) continue;
    ordered_json& type = property["type"];
    if (type.is_string()) type = ordered_json::array({type});
    if (!Contains(type, "null")) type.push_back("null");
  }
  return schema;
}

ordered_json AnswerOf(const char* description, const char* schema) {
  return {{"description", description},
          {"content", {{"application/json", {{"schema", {{"$ref", schema}}}}}}}};
}

ordered_json Parameters(std::string_view method, std::string_view path) {
  ordered_json parameters = ordered_json::array();
  for (size_t at = path.find('{'); at != path.npos; at = path.find('{', at + 1)) {
    const std::string name(path.substr(at + 1, path.find('}', at) - at - 1));
    ordered_json schema = {{"type", "string"}};
    if (name == "index") schema = {{"type", "integer"}, {"minimum", 0}};
    if (name == "id" && path.starts_with("/v1/")) schema["pattern"] = kSessionId;
    parameters.push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", std::move(schema)}});
  }
  const auto query = [&](const char* name, ordered_json schema) {
    parameters.push_back({{"name", name}, {"in", "query"}, {"schema", std::move(schema)}});
  };
  if (path == "/slots/{id}") query("action", {{"enum", {"save", "restore", "erase"}}});
  if (method != "GET") return parameters;
  if (path == "/v1/sessions") {
    query("limit", {{"type", "integer"}, {"minimum", 1}, {"maximum", 100}});
    query("after", {{"type", "string"}});
  }
  if (path == "/v1/sessions/{id}") query("ids", {{"type", "boolean"}});
  return parameters;
}

// Answers other than JSON.
struct OtherContent {
  std::string_view path;
  const char* type;
};
constexpr OtherContent kOtherContents[] = {{"/metrics", "text/plain"},
                                           {"/page.css", "text/css"},
                                           {"/page.js", "text/javascript"},
                                           {"/page.svg", "image/svg+xml"}};

bool ShowsSession(std::string_view method, std::string_view path) {
  if (path == "/v1/sessions") return method == "POST";
  return path.starts_with("/v1/sessions/") && method != "DELETE" && !path.ends_with("/generate") &&
         !path.ends_with("/forget");
}

// Whether the answer may be a list.
bool IsLlama(std::string_view path) {
  constexpr std::string_view kPaths[] = {"/completion", "/completions", "/infill", "/slots"};
  return std::ranges::find(kPaths, path) != std::end(kPaths);
}

ordered_json Operation(std::string_view method, std::string_view path, const Described& described) {
  const bool makes = method == "POST" && (path == "/v1/sessions" || path.ends_with("/fork"));
  ordered_json operation = {{"summary", described.summary}};
  ordered_json parameters = Parameters(method, path);
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  const bool is_libre = path == "/translate" || path == "/languages";
  if (described.properties != nullptr) {
    ordered_json content = {{"application/json", {{"schema", BodySchema(described)}}}};
    if (is_libre) {
      const ordered_json form = {{"schema", {{"type", "object"}}}};
      content["application/x-www-form-urlencoded"] = content["multipart/form-data"] = form;
    }
    operation["requestBody"] = {{"required", described.required != nullptr},
                                {"content", std::move(content)}};
  }
  const bool is_llama = IsLlama(path);
  const bool may_be_list = is_llama || path == "/languages";
  ordered_json done = AnswerOf("done", ShowsSession(method, path) ? "#/components/schemas/Session"
                                       : may_be_list              ? "#/components/schemas/Answers"
                                                                  : "#/components/schemas/Object");
  const auto* other = std::ranges::find(kOtherContents, path, &OtherContent::path);
  if (other != std::end(kOtherContents)) {
    done["content"] = {{other->type, ordered_json::object()}};
  }
  if (path == "/") done["content"]["text/html"] = ordered_json::object();
  if (path.ends_with("completions") || path == "/v1/translations" || path.ends_with("/generate") ||
      (is_llama && path != "/slots")) {
    done["content"]["text/event-stream"] = ordered_json::object();
  }
  operation["responses"] = {{makes ? "201" : "200", std::move(done)}};
  const char* error = is_libre ? "#/components/schemas/PlainError" : "#/components/schemas/Error";
  operation["responses"]["4XX"] = AnswerOf("refused", error);
  operation["responses"]["5XX"] = AnswerOf("not now, or failed", error);
  return operation;
}

}  // namespace

std::string Service::OpenApiText() const {
  ordered_json paths = ordered_json::object();
  for (const Route& route : routes_.all()) {
    const Described* described = Find(route.method, route.path);
    if (described == nullptr) continue;  // not available in this version
    std::string path(route.path);
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{model}");
    std::string method(route.method);
    std::ranges::transform(method, method.begin(), [](char c) { return std::tolower(c); });
    paths[path][method] = Operation(route.method, path, *described);
  }
  const ordered_json error = {
      {"type", "object"},
      {"required", {"error"}},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"required", {"message", "type", "param", "code"}},
          {"properties", {{"message", {{"type", "string"}}}, {"code", {{"type", "string"}}}}}}}}}};
  ordered_json schemas = ordered_json::object();
  schemas["Object"] = {{"type", "object"}};
  schemas["Answers"] = {{"type", {"object", "array"}}, {"items", {{"type", "object"}}}};
  schemas["Error"] = error;
  schemas["PlainError"] = {{"type", "object"},
                           {"required", {"error"}},
                           {"properties", {{"error", {{"type", "string"}}}}}};
  schemas["Session"] = {{"type", "object"},
                        {"required", {"id", "object", "created", "model", "messages", "tokens"}},
                        {"properties",
                         {{"id", {{"type", "string"}, {"pattern", kSessionId}}},
                          {"object", {{"const", "session"}}},
                          {"created", {{"type", "integer"}}},
                          {"model", {{"type", "string"}}},
                          {"messages", {{"type", {"integer", "array"}}}},
                          {"tokens", {{"type", {"integer", "null"}}}}}}};
  ordered_json body = {{"openapi", "3.1.0"},
                       {"info", {{"title", "kvasir"}, {"version", options_.version}}},
                       {"paths", std::move(paths)}};
  body["components"] = {{"schemas", std::move(schemas)},
                        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  return body.dump();
}

Outcome Service::OpenApi(const Call&) {
  HttpResponse response;
  response.body = openapi_text_;
  return response;
}

}  // namespace kvasir
