// Where the server secret is read that an earlier process made.
#pragma once

#include "base/secret.h"
#include "kvasir/secret_place.h"
#include "kvasir/status.h"

namespace kvasir {

// Returns the secret of the file, if it is named, else that of StateDir(place.state_dir). Errors
// are those of LoadOrCreateSecret, and kNotFound: it makes none.
Result<Secret> SecretAt(const SecretPlace& place);

}  // namespace kvasir
