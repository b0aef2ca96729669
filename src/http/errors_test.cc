#include "http/errors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using nlohmann::json;

TEST(SubmitError, NamesTheFieldAsTheRequestDoes) {
  const auto param_of = [](Error error) { return SubmitError(error, "messages").field; };
  EXPECT_EQ(param_of({Code::kInvalidArgument, "9 is too much", "n"}), "n");
  EXPECT_EQ(param_of({Code::kInvalidArgument, "no tokens", "prompt"}), "messages");
  EXPECT_EQ(param_of({Code::kInvalidArgument, "n: prose is not read"}), "messages");
  EXPECT_EQ(param_of({Code::kExhausted, "the queue is full", "n"}), std::nullopt);
  EXPECT_EQ(SubmitError({Code::kInvalidArgument, "token 9", "prompt", 3}, "messages").text(),
            "messages[3]: token 9");
}

// A part of a request outside its body decides the status too, but is not named as `param`.
TEST(ErrorResponse, HasStatusAndNameOfTheFieldWhereHttpHas) {
  const auto answer = [](Code code, const char* field) {
    const HttpResponse response = ErrorResponse({code, "what happened", field});
    const json error = json::parse(response.body)["error"];
    EXPECT_EQ(json(response.refusal->code), error["code"]);
    EXPECT_EQ(response.refusal->field, field);
    return fmt::format("{} {} {}", response.status, std::string(error["code"]),
                       error["param"].dump());
  };
  EXPECT_EQ(answer(Code::kExhausted, "body"), "413 body_too_large null");
  EXPECT_EQ(answer(Code::kUnsupported, "method"), "405 method_not_allowed null");
  EXPECT_EQ(answer(Code::kPermissionDenied, "origin"), "403 origin_not_allowed null");
  EXPECT_EQ(answer(Code::kNotFound, "model"), "404 model_not_found \"model\"");
  EXPECT_EQ(answer(Code::kInvalidArgument, "body"), "400 invalid_argument \"body\"");
}

TEST(ErrorResponse, HasOneStatusForEachCode) {
  const std::pair<Code, int> expected[] = {
      {Code::kInvalidArgument, 400},  {Code::kNotFound, 404},    {Code::kExhausted, 429},
      {Code::kCorruption, 500},       {Code::kIoError, 500},     {Code::kDeadlineExceeded, 504},
      {Code::kUnavailable, 503},      {Code::kUnsupported, 400}, {Code::kCancelled, 503},
      {Code::kPermissionDenied, 401}, {Code::kModelChanged, 503}};
  for (const auto& [code, status] : expected) {
    const HttpResponse response = ErrorResponse({code, "what \xff happened", "field"});
    EXPECT_EQ(response.status, status);
    const json error = json::parse(response.body)["error"];
    EXPECT_EQ(error["param"], "field");
    EXPECT_EQ(error.size(), 4u);
    const bool waits = status == 429 || status == 503;
    EXPECT_EQ(waits, !response.headers.empty() && response.headers[0].first == "Retry-After");
  }
}

}  // namespace
}  // namespace kvasir
