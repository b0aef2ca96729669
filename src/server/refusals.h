// Refusals by who the caller is.
#pragma once

#include <optional>
#include <string_view>

#include "access/credentials.h"
#include "http/http_message.h"

namespace kvasir {

// Refuses a request without a valid key.
HttpResponse NoValidKey();
// Refuses a request with the admin key, which has no tenant, where a tenant is needed.
HttpResponse NoTenant();
// Refuses a caller that may not ask about other tenants. `path`: what it asked for, for the
// message.
std::optional<HttpResponse> CheckAdmin(const Credentials& keys, std::string_view path,
                                       const Caller& caller);

}  // namespace kvasir
