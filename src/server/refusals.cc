#include "server/refusals.h"

#include <fmt/format.h>

#include "http/errors.h"

namespace kvasir {

HttpResponse NoValidKey() {
  return ErrorResponse(
      {Code::kPermissionDenied,
       "no valid API key; send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"", "api_key"});
}

HttpResponse NoTenant() {
  return ErrorResponse(
      {.code = Code::kPermissionDenied,
       .message = "tenant: the admin key has no prompts and no cache; send an API key",
       .cause = Cause::kNoTenant});
}

std::optional<HttpResponse> CheckAdmin(const Credentials& keys, std::string_view path,
                                       const Caller& caller) {
  if (!keys.sums_are_admins() || caller.is_admin) return std::nullopt;
  if (!keys.required()) return NoValidKey();  // only the admin's is asked for
  return ErrorResponse({.code = Code::kPermissionDenied,
                        .message = fmt::format(
                            "admin_key: {} is about all tenants; send the key that the server was "
                            "given as --admin-key, or an admin key of --keys",
                            path),
                        .cause = Cause::kNotAdmin});
}

}  // namespace kvasir
