// ErrorShape: the form in which the clients of a protocol read errors.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "http/http_message.h"

namespace kvasir {

// Stands beside the routes of its protocol, and lives for ever.
struct ErrorShape {
  const char* name;    // of the schema, in /openapi.json
  const char* schema;  // JSON Schema
  // Gives a body {"error": {"message", "type", "param", "code"}} the protocol's form; nullptr: that
  // is its form.
  void (*reshape)(const HttpRequest& request, int status, nlohmann::json* body) = nullptr;
};

// OpenAI's form, which all other forms are made from.
inline constexpr ErrorShape kOpenAiErrors{
    .name = "Error",
    .schema = R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",
      "required":["message","type","param","code"],
      "properties":{"message":{"type":"string"},"code":{"type":"string"}}}}})"};

// {"error": "text"}, as clients of LibreTranslate and of Ollama read it.
extern const ErrorShape kPlainErrors;

}  // namespace kvasir
