#include "http/errors.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_writer.h"

namespace kvasir {
namespace {

struct CodeRow {
  Code code;
  int status;
  std::string_view name;
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

// Fields for which HTTP or OpenAI defines a special status or code.
struct FieldRow {
  std::string_view field;
  CodeRow row;
  enum Of { kRequest, kBody } of = kRequest;  // kBody: a field of the body's JSON
};

constexpr FieldRow kFields[] = {
    {"body", {Code::kExhausted, 413, "body_too_large"}},
    {"head", {Code::kExhausted, 431, "head_too_large"}},
    {"head", {Code::kInvalidArgument, 400, "invalid_argument"}},
    {"request", {Code::kDeadlineExceeded, 408, "timeout"}},
    {"method", {Code::kUnsupported, 405, "method_not_allowed"}},
    {"transfer_encoding", {Code::kUnsupported, 501, "unsupported"}},
    {"content_encoding", {Code::kUnsupported, 415, "unsupported"}},
    {"host", {Code::kPermissionDenied, 421, "misdirected"}},
    {"origin", {Code::kPermissionDenied, 403, "origin_not_allowed"}},
    {"api_key", {Code::kPermissionDenied, 401, "invalid_api_key"}},
    {"model", {Code::kNotFound, 404, "model_not_found"}, FieldRow::kBody},
    {"previous_response_id",
     {Code::kNotFound, 404, "previous_response_not_found"},
     FieldRow::kBody},
    {"lora_path", {Code::kPermissionDenied, 403, "lora_dir"}, FieldRow::kBody},
    {"lora_name", {Code::kPermissionDenied, 403, "lora_dir"}, FieldRow::kBody},
    {"action", {Code::kInvalidArgument, 400, "invalid_argument"}},
    {"slots", {Code::kUnsupported, 501, "unsupported"}},
    {"infill", {Code::kUnsupported, 501, "unsupported"}},
    {"max_context", {Code::kExhausted, 400, "context_full"}, FieldRow::kBody},
};

// Causes with another status or name than their codes.
struct CauseRow {
  Cause cause;
  CodeRow row;
};

constexpr CauseRow kCauses[] = {
    {Cause::kKeyRevoked, {Code::kPermissionDenied, 401, "key_revoked"}},
    {Cause::kNoTenant, {Code::kPermissionDenied, 403, "not_tenant"}},
    {Cause::kNotAdmin, {Code::kPermissionDenied, 403, "not_admin"}},
    {Cause::kRate, {Code::kExhausted, 429, "rate_limit_exceeded"}},
    {Cause::kDeadline, {Code::kUnavailable, 503, "deadline_unmeetable"}},
    {Cause::kReadOnly, {Code::kUnavailable, 503, "read_only_store"}},
    {Cause::kContext, {Code::kInvalidArgument, 400, "context_length_exceeded"}},
};

const FieldRow* FieldRowOf(const Error& error) {
  const auto* found = std::ranges::find_if(kFields, [&](const FieldRow& row) {
    return row.row.code == error.code && row.field == error.field;
  });
  return found == std::end(kFields) ? nullptr : found;
}

const CodeRow& RowOf(const Error& error) {
  for (const CauseRow& row : kCauses) {
    if (row.cause == error.cause && row.row.code == error.code) return row.row;
  }
  if (const FieldRow* row = FieldRowOf(error)) return row->row;
  for (const CodeRow& row : kCodes) {
    if (row.code == error.code) return row;
  }
  static constexpr CodeRow kUnknown = {Code::kIoError, 500, "internal"};
  return kUnknown;
}

// llama.cpp's, beside n_prompt_tokens and n_ctx.
constexpr const char* kContextType = "exceed_context_size_error";

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
    case 501:
      return "not_supported_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

int HttpStatus(const Error& error) { return RowOf(error).status; }

Refusal RefusalOf(const Error& error) {
  return {std::string(RowOf(error).name), error.field_is_sent ? std::nullopt : error.field};
}

std::string ErrorObject(const Error& error) {
  const CodeRow& row = RowOf(error);
  nlohmann::json object = {{"message", error.text()},
                           {"type", error.excess ? kContextType : TypeOf(row.status)},
                           {"param", nullptr},
                           {"code", row.name}};
  const FieldRow* field_row = FieldRowOf(error);
  const bool of_body = field_row == nullptr || field_row->of == FieldRow::kBody;
  if (error.field && of_body) object["param"] = *error.field;
  if (error.excess) {
    object["n_prompt_tokens"] = error.excess->prompt_tokens;
    object["n_ctx"] = error.excess->ctx_size;
    if (error.excess->is_least) object["n_prompt_tokens_is_least"] = true;
  }
  return Dump(object);
}

HttpResponse ErrorResponse(const Error& error) {
  HttpResponse response;
  response.status = HttpStatus(error);
  response.refusal = RefusalOf(error);
  response.body = "{\"error\":" + ErrorObject(error) + "}";
  if (error.cause == Cause::kDeadline || error.cause == Cause::kReadOnly) {  // it lasts
    response.headers.emplace_back("x-should-retry", "false");
  } else if (response.status == 429 || response.status == 503) {
    const uint64_t retry_ms = error.retry_ms.value_or(response.status == 429 ? 1000 : 5000);
    response.headers.emplace_back("Retry-After", std::to_string((retry_ms + 999) / 1000));
    response.headers.emplace_back("retry-after-ms", std::to_string(retry_ms));
  }
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

Error KeyRevoked() {
  return {.code = Code::kPermissionDenied,
          .message = "the API key of this request was removed",
          .cause = Cause::kKeyRevoked};
}

Error SubmitError(Error error, const std::string& prompt_field) {
  if (error.code != Code::kInvalidArgument) {
    if (!FieldRowOf(error)) error = {error.code, error.text(), {}, {}, error.retry_ms, error.cause};
    return error;
  }
  if (!error.field || error.field == "prompt") error.field = prompt_field;
  return error;
}

}  // namespace kvasir
