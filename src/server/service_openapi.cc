// GET /openapi.json: every path of this server, for clients that are generated and for tests.
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
  const char* required = "[]";
};

constexpr const char* kSampling =
    R"("max_tokens":{"type":"integer","minimum":0},"temperature":{"type":"number","minimum":0,"maximum":100},
    "top_p":{"type":"number","minimum":0,"maximum":1},"seed":{"type":"integer"},"stream":{"type":"boolean"})";
// Of chats: what answers may have apart from their content.
constexpr const char* kAnswers =
    R"("tool_choice":{"enum":["none","auto"]},"parallel_tool_calls":{"type":"boolean"},
    "reasoning_format":{"enum":["auto","none"]})";
constexpr const char* kTools = R"("tools":{"type":"array","items":{"type":"object"}})";
constexpr const char* kMessages =
    R"("messages":{"type":"array","items":{"type":"object","required":["role"],"properties":{
    "role":{"enum":["system","developer","user","assistant","tool"]},
    "content":{"type":["string","array","null"]},"reasoning_content":{"type":"string"},
    "tool_calls":{"type":"array","items":{"type":"object"}},"tool_call_id":{"type":"string"},"segments":{"type":"array","items":{"type":"object",
    "required":["name","begin","end"],"properties":{"name":{"type":"string"},
    "begin":{"type":"integer","minimum":0},"end":{"type":"integer","minimum":0}}}}}}})";
constexpr const char* kCount = R"("messages":{"type":"integer","minimum":0})";
constexpr const char* kContent =
    R"("content":{"type":["string","array"]},"segments":{"type":"array"})";

std::string Joined(const std::string& first, const std::string& second) {
  return first + "," + second;
}

constexpr Described kDescribed[] = {
    {"POST /v1/chat/completions", "Answers a chat.", "chat", R"(["messages"])"},
    {"POST /v1/completions", "Continues a text, or token ids.", "completion", R"(["prompt"])"},
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
    {"POST /v1/sessions/{id}/messages", "Appends messages.", "messages", R"(["messages"])"},
    {"PUT /v1/sessions/{id}/messages/{index}", "Edits a message.", "edit", R"(["content"])"},
    {"PUT /v1/sessions/{id}/system", "Sets the system message.", "content", R"(["content"])"},
    {"POST /v1/sessions/{id}/generate", "Generates the next answer.", "generate"},
    {"POST /v1/sessions/{id}/fork", "Makes a session with the first messages.", "count"},
    {"POST /v1/sessions/{id}/truncate", "Keeps the first messages.", "count", R"(["messages"])"},
    {"POST /v1/sessions/{id}/forget", "Forgets a message or a part of it.", "forget"},
    {"POST /tokenize", "Text to token ids.",
     R"("content":{"type":"string"},"prompt":{"type":"string"})"},
    {"POST /detokenize", "Token ids to text.",
     R"("tokens":{"type":"array","items":{"type":"integer","minimum":0}})", R"(["tokens"])"},
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
  if (name == "chat") return Joined(Joined(kMessages, kSampling), Joined(kTools, kAnswers));
  if (name == "completion") return Joined(R"("prompt":{"type":["string","array"]})", kSampling);
  if (name == "messages") return kMessages;
  if (name == "content") return kContent;
  if (name == "count") return kCount;
  if (name == "edit") return Joined(kContent, R"("keep_later":{"type":"boolean"})");
  if (name == "generate") {
    return Joined(Joined(kMessages, kSampling),
                  Joined(kAnswers, R"("keep_partial":{"type":"boolean"})"));
  }
  if (name == "forget") {
    return R"("index":{"type":"integer","minimum":0},"begin":{"type":"integer","minimum":0},
        "end":{"type":"integer","minimum":1},"segment":{"type":"string"})";
  }
  if (name == "session") {
    return Joined(kMessages, R"("model":{"type":"string"},"system":{"type":"string"},
        "tools":{"type":"array","items":{"type":"object"}},
        "chat_template_kwargs":{"type":"object"},"sampling":{"type":"object"},
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

ordered_json Answer(const char* description, const char* schema) {
  return {{"description", description},
          {"content", {{"application/json", {{"schema", {{"$ref", schema}}}}}}}};
}

ordered_json Parameters(std::string_view path) {
  ordered_json parameters = ordered_json::array();
  for (size_t at = path.find('{'); at != path.npos; at = path.find('{', at + 1)) {
    const std::string name(path.substr(at + 1, path.find('}', at) - at - 1));
    const char* type = name == "index" ? "integer" : "string";
    parameters.push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", type}}}});
  }
  const auto query = [&](const char* name, ordered_json schema) {
    parameters.push_back({{"name", name}, {"in", "query"}, {"schema", std::move(schema)}});
  };
  if (path == "/v1/sessions") {
    query("limit", {{"type", "integer"}, {"minimum", 1}, {"maximum", 100}});
    query("after", {{"type", "string"}});
  }
  if (path == "/v1/sessions/{id}") query("ids", {{"type", "boolean"}});
  return parameters;
}

ordered_json Operation(std::string_view method, std::string_view path, const Described& described) {
  const bool makes = method == "POST" && (path == "/v1/sessions" || path.ends_with("/fork"));
  ordered_json operation = {{"summary", described.summary}};
  ordered_json parameters =
      method == "GET" || path != "/v1/sessions" ? Parameters(path) : ordered_json::array();
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  if (described.properties != nullptr) {
    ordered_json schema = {
        {"type", "object"},
        {"properties", ordered_json::parse("{" + PropertiesOf(described.properties) + "}")}};
    ordered_json required = ordered_json::parse(described.required);
    if (!required.empty()) schema["required"] = std::move(required);
    operation["requestBody"] = {
        {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
  }
  ordered_json done = path == "/metrics"
                          ? ordered_json{{"description", "Prometheus text"},
                                         {"content", {{"text/plain", ordered_json::object()}}}}
                          : Answer("done", "#/components/schemas/Object");
  if (path.ends_with("completions") || path.ends_with("/generate")) {
    done["content"]["text/event-stream"] = ordered_json::object();
  }
  operation["responses"] = {{makes ? "201" : "200", std::move(done)}};
  operation["responses"]["4XX"] = Answer("refused", "#/components/schemas/Error");
  operation["responses"]["5XX"] = Answer("not now, or failed", "#/components/schemas/Error");
  return operation;
}

}  // namespace

Outcome Service::OpenApi(const Call&) {
  ordered_json paths = ordered_json::object();
  for (const Route& route : Routes()) {
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
  schemas["Error"] = error;
  ordered_json body = {{"openapi", "3.1.0"},
                       {"info", {{"title", "kvasir"}, {"version", options_.version}}},
                       {"paths", std::move(paths)}};
  body["components"] = {{"schemas", std::move(schemas)},
                        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  HttpResponse response;
  response.body = body.dump();
  return response;
}

}  // namespace kvasir
