// ReadPassphrase: the passphrase of a backup, which no command line has.
#pragma once

#include <string>

#include "cli/args.h"
#include "kvasir/status.h"

namespace kvasir::cli {

enum class Passphrase : uint8_t { kNew, kKnown };

// Returns the first line of the file of --passphrase-file, else the variable
// KVASIR_BACKUP_PASSPHRASE, else what is typed at the terminal: twice, where it is a new one.
// kInvalidArgument: none of the three gives a passphrase, other users can read the file, or the two
// differ. The caller wipes it.
Result<std::string> ReadPassphrase(const Args& args, Passphrase which);

Flag PassphraseFlag();

}  // namespace kvasir::cli
