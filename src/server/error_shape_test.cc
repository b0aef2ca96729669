#include "server/error_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/errors.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Checks types and required properties: all that the schemas of errors say.
bool FitsErrorSchema(const json& value, const json& schema) {
  if (schema.value("type", "") == "string") return value.is_string();
  if (schema.value("type", "") != "object" || !value.is_object()) return false;
  for (const json& name : schema.at("required")) {
    if (!value.contains(name)) return false;
  }
  for (const auto& [name, property] : schema.at("properties").items()) {
    if (!FitsErrorSchema(value.at(name), property)) return false;
  }
  return true;
}

TEST(ErrorShape, ABodyFitsTheSchemaOfItsShapeAlone) {
  const json openai =
      json::parse(ErrorResponse({Code::kInvalidArgument, "is too long", "prompt"}).body);
  json plain = openai;
  kPlainErrors.reshape({}, 400, &plain);
  EXPECT_EQ(plain, json({{"error", openai.at("error").at("message")}}));
  const json of_openai = json::parse(kOpenAiErrors.schema),
             of_plain = json::parse(kPlainErrors.schema);
  EXPECT_TRUE(FitsErrorSchema(openai, of_openai));
  EXPECT_FALSE(FitsErrorSchema(openai, of_plain));
  EXPECT_TRUE(FitsErrorSchema(plain, of_plain));
  EXPECT_FALSE(FitsErrorSchema(plain, of_openai));
  EXPECT_EQ(kOpenAiErrors.reshape, nullptr) << "the form that all others are made from";
}

}  // namespace
}  // namespace kvasir
