// Refusals that the source files of Service share.
#pragma once

#include "http/http_message.h"
#include "server/service.h"

namespace kvasir {

HttpResponse NoValidKey();

}  // namespace kvasir
