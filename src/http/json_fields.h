// JsonFields, which stand in base/json_fields.h, and the bodies of requests.
#pragma once

#include "base/json_fields.h"  // IWYU pragma: export
#include "http/json_body.h"    // IWYU pragma: export
