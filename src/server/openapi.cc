#include "server/openapi.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

bool Contains(const ordered_json& array, const ordered_json& text) {
  return std::find(array.begin(), array.end(), text) != array.end();
}

// Returns a body's schema. null counts as absent, so that fields may be null unless they are
// required.
ordered_json BodySchema(const Description& described) {
  ordered_json schema = {{"type", "object"},
                         {"properties", ordered_json::parse("{" + described.properties + "}")}};
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

ordered_json AnswerOf(const char* description, const std::string& schema) {
  return {{"description", description},
          {"content", {{"application/json", {{"schema", {{"$ref", schema}}}}}}}};
}

// Returns the route's path with a name for "*".
std::string ShownPath(const Route& route) {
  std::string path(route.path);
  if (path.ends_with('*')) {
    path.replace(path.size() - 1, 1, fmt::format("{{{}}}", route.description.rest));
  }
  return path;
}

ordered_json ParametersOf(const Route& route) {
  const std::vector<Description::Parameter>& described = route.description.parameters;
  ordered_json parameters = ordered_json::array();
  const auto add = [&](const std::string& name, const char* in, ordered_json schema) {
    ordered_json parameter = {{"name", name}, {"in", in}};
    if (std::string_view(in) == "path") parameter["required"] = true;
    parameter["schema"] = std::move(schema);
    parameters.push_back(std::move(parameter));
  };
  const auto named = [&](const std::string& name) {
    return std::ranges::find(described, name, &Description::Parameter::name);
  };
  const std::string path = ShownPath(route);
  for (size_t at = path.find('{'); at != path.npos; at = path.find('{', at + 1)) {
    const std::string name = path.substr(at + 1, path.find('}', at) - at - 1);
    const auto found = named(name);
    add(name, "path",
        found == described.end() ? ordered_json{{"type", "string"}}
                                 : ordered_json::parse(found->schema));
  }
  for (const Description::Parameter& parameter : described) {
    if (path.find(fmt::format("{{{}}}", parameter.name)) != path.npos) continue;
    add(parameter.name, "query", ordered_json::parse(parameter.schema));
  }
  return parameters;
}

ordered_json Operation(const Route& route) {
  const Description& described = route.description;
  ordered_json operation = {{"summary", described.summary}};
  ordered_json parameters = ParametersOf(route);
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  if (!described.properties.empty()) {
    ordered_json schema = BodySchema(described);
    if (described.takes_list) schema = {{"type", "array"}, {"items", std::move(schema)}};
    ordered_json content = {{"application/json", {{"schema", std::move(schema)}}}};
    if (described.takes_form) {
      const ordered_json form = {{"schema", {{"type", "object"}}}};
      content["application/x-www-form-urlencoded"] = content["multipart/form-data"] = form;
    }
    operation["requestBody"] = {{"required", described.required != nullptr},
                                {"content", std::move(content)}};
  }
  ordered_json done = AnswerOf("done", fmt::format("#/components/schemas/{}", described.answer));
  if (described.content_type != nullptr) {
    done["content"] = {{described.content_type, ordered_json::object()}};
  }
  if (described.has_page) done["content"]["text/html"] = ordered_json::object();
  if (described.streams) done["content"][described.stream_type] = ordered_json::object();
  operation["responses"] = {{described.status, std::move(done)}};
  const std::string error = fmt::format("#/components/schemas/{}", route.errors->name);
  operation["responses"]["4XX"] = AnswerOf("refused", error);
  operation["responses"]["5XX"] = AnswerOf("not now, or failed", error);
  return operation;
}

}  // namespace

std::string OpenApiText(const RouteTable& table, const std::string& version) {
  ordered_json paths = ordered_json::object();
  for (const Route& route : table.all()) {
    if (route.description.summary == nullptr) continue;
    paths[ShownPath(route)][LowerAscii(route.method)] = Operation(route);
  }
  ordered_json schemas = ordered_json::object();
  schemas["Object"] = {{"type", "object"}};
  schemas["Answers"] = {{"type", {"object", "array"}}, {"items", {{"type", "object"}}}};
  for (const Route& route : table.all()) {
    if (route.description.summary == nullptr || schemas.contains(route.errors->name)) continue;
    schemas[route.errors->name] = ordered_json::parse(route.errors->schema);
  }
  schemas["Session"] = {{"type", "object"},
                        {"required", {"id", "object", "created", "model", "messages", "tokens"}},
                        {"properties",
                         {{"id", {{"type", "string"}, {"pattern", kSessionIdPattern}}},
                          {"object", {{"const", "session"}}},
                          {"created", {{"type", "integer"}}},
                          {"model", {{"type", "string"}}},
                          {"title", {{"type", {"string", "null"}}}},
                          {"origin", {{"type", "string"}}},
                          {"messages", {{"type", {"integer", "array"}}}},
                          {"tokens", {{"type", {"integer", "null"}}}}}}};
  ordered_json body = {{"openapi", "3.1.0"},
                       {"info", {{"title", "kvasir"}, {"version", version}}},
                       {"paths", std::move(paths)}};
  body["components"] = {{"schemas", std::move(schemas)},
                        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  return body.dump();
}

void AddListRoutes(RouteTable* table) {
  struct Made {
    std::once_flag once;
    std::string text;
  };
  table->Add({.path = "/openapi.json",
              .method = "GET",
              .handler = [table, made = std::make_shared<Made>()](const Call& call) -> Outcome {
                // At the first call, when the table has all routes.
                std::call_once(made->once,
                               [&] { made->text = OpenApiText(*table, call.options.version); });
                HttpResponse response;
                response.body = made->text;
                return response;
              },
              .description = {.summary = "This description."}});
  table->Add({.path = "/",
              .method = "GET",
              .handler = [table](const Call& call) -> Outcome {
                std::vector<std::string> endpoints;
                for (const Route& route : table->all()) {
                  if (route.method.empty()) continue;
                  endpoints.push_back(fmt::format("{} {}", route.method, route.path));
                }
                return JsonResponse({{"name", "kvasir"},
                                     {"version", call.options.version},
                                     {"model", call.model.names.front()},
                                     {"openai_base_url_path", "/v1"},
                                     {"endpoints", std::move(endpoints)}});
              },
              .description = {.summary = "Name, version and paths.", .has_page = true}});
}

}  // namespace kvasir
