#include "server/errors.h"

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

struct CodeRow {
  Code code;
  int status;
  const char* name;
};

constexpr CodeRow kCodes[] = {
    {Code::kInvalidArgument, 400, "invalid_argument"},
    {Code::kNotFound, 404, "not_found"},
    {Code::kExhausted, 429, "exhausted"},
    {Code::kCorruption, 500, "corruption"},
    {Code::kIoError, 500, "io_error"},
    {Code::kDeadlineExceeded, 504, "deadline_exceeded"},
    {Code::kUnavailable, 503, "unavailable"},
    {Code::kUnsupported, 400, "unsupported"},
    {Code::kCancelled, 503, "cancelled"},
    {Code::kPermissionDenied, 401, "permission_denied"},
    {Code::kModelChanged, 503, "model_changed"},
};

const CodeRow& RowOf(Code code) {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) return row;
  }
  static constexpr CodeRow kUnknown = {Code::kIoError, 500, "internal"};
  return kUnknown;
}

int StatusOf(const ApiError& error) { return error.status ? error.status : HttpStatus(error.code); }

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

int HttpStatus(Code code) { return RowOf(code).status; }

std::string ErrorObject(const ApiError& error) {
  nlohmann::json object = {{"message", error.message},
                           {"type", TypeOf(StatusOf(error))},
                           {"param", nullptr},
                           {"code", error.name.empty() ? RowOf(error.code).name : error.name}};
  if (!error.param.empty()) object["param"] = error.param;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = StatusOf(error);
  response.body = "{\"error\":" + ErrorObject(error) + "}";
  if (response.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (response.status == 503) response.headers.emplace_back("Retry-After", "5");
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

tl::unexpected<ApiError> Invalid(std::string param, std::string message) {
  return tl::unexpected(ApiError{Code::kInvalidArgument, std::move(message), std::move(param)});
}

ApiError ToApiError(const Error& error, std::string param) {
  return ApiError{error.code, error.text(), std::move(param)};
}

ApiError SubmitError(const Error& error, const std::string& prompt_param) {
  if (error.code != Code::kInvalidArgument) return ToApiError(error);
  const std::string field = error.field.value_or("prompt");
  return ToApiError(error, field == "prompt" ? prompt_param : field);
}

}  // namespace kvasir
