#include "http/errors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "source_paths.h"

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

TEST(ErrorResponse, LeavesAWordOfTheClientOutOfTheLog) {
  Error error{Code::kInvalidArgument, "unknown field", "cache.my secret"};
  EXPECT_EQ(RefusalOf(error).field, "cache.my secret");
  error.field_is_sent = true;
  EXPECT_FALSE(RefusalOf(error).field);
  const HttpResponse response = ErrorResponse(error);
  EXPECT_FALSE(response.refusal->field);
  EXPECT_EQ(json::parse(response.body)["error"]["param"], "cache.my secret");
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

TEST(ErrorResponse, WhatLastsIsNotToBeTriedAgain) {
  for (const auto& [cause, code] : {std::pair(Cause::kDeadline, "deadline_unmeetable"),
                                    std::pair(Cause::kReadOnly, "read_only_store")}) {
    const HttpResponse response =
        ErrorResponse({.code = Code::kUnavailable, .message = "it is in vain", .cause = cause});
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(json::parse(response.body)["error"]["code"], code);
    const std::vector<std::pair<std::string, std::string>> headers = {{"x-should-retry", "false"}};
    EXPECT_EQ(response.headers, headers);
  }
}

using StatusAndCode = std::pair<int, std::string>;

std::string ReadSource(const std::string& path) {
  std::ifstream file(KVASIR_SOURCE_DIR "/" + path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns what each match of the pattern captures: a status and a code.
std::set<StatusAndCode> Matches(const std::string& text, const std::string& pattern) {
  std::set<StatusAndCode> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    found.emplace(std::stoi((*at)[1]), (*at)[2]);
  }
  return found;
}

// Returns the statuses and codes of the table in docs/api.md. A row without a status has that of
// the row before it.
std::set<StatusAndCode> DocumentedErrors() {
  const std::string page = ReadSource("docs/api.md");
  const size_t begin = page.find("| status | code | when |");
  EXPECT_NE(begin, page.npos);
  std::istringstream lines(page.substr(begin, page.find("\n\n", begin) - begin));
  std::set<StatusAndCode> found;
  std::string status;
  for (std::string line; std::getline(lines, line);) {
    std::smatch row;
    if (!std::regex_match(line, row, std::regex(R"(\| ?(\d*) ?\| (`[^|]*`) \|.*)"))) continue;
    if (row[1].length() > 0) status = row[1];
    std::istringstream codes(row[2]);
    for (std::string code; std::getline(codes, code, '`') && std::getline(codes, code, '`');) {
      found.emplace(std::stoi(status), code);
    }
  }
  return found;
}

TEST(ErrorResponse, EachStatusAndCodeIsInTheDocs) {
  const auto answered =
      Matches(ReadSource("src/http/errors.cc"), R"re(Code::k\w+, (\d+), "(\w+)")re");
  EXPECT_GT(answered.size(), 25u);
  EXPECT_EQ(DocumentedErrors(), answered);
}

}  // namespace
}  // namespace kvasir
