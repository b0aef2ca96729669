#include "server/error_shape.h"

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

void KeepMessage(const HttpRequest&, int, nlohmann::json* body) {
  nlohmann::json& error = body->at("error");
  error = nlohmann::json(error.at("message"));
}

}  // namespace

const ErrorShape kPlainErrors{
    .name = "PlainError",
    .schema = R"({"type":"object","required":["error"],"properties":{"error":{"type":"string"}}})",
    .reshape = KeepMessage};

}  // namespace kvasir
