// The models of the Hugging Face cache by the names that people type.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "hub/cache_listing.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Returns the name of a model as 'kvasir list' shows it and --model takes it.
std::string CachedNameOf(const hub::CachedModel& model);

// Finds the model that a text names: as 'kvasir list' shows it, or without the owner, without
// "-GGUF", and with a quant or nothing after the colon. Capitals do not matter. Absent: none.
// kInvalidArgument: it may mean several.
Result<std::optional<hub::CachedModel>> FindCached(const std::vector<hub::CachedModel>& models,
                                                   std::string_view text);

// Returns what --model takes for an argument without a flag: the path of a model, or the name of
// one in the cache, which may leave out as much; where several files of a repository are meant, the
// rules of --model choose. Absent: it names none, so that it may be a text. kInvalidArgument: it
// may mean models of several repositories.
Result<std::optional<std::string>> ModelNamed(const std::string& text);
// Returns the same where it must name one. kNotFound: it does not; the message says what would.
Result<std::string> RequireModel(const std::string& text);
// Returns " (did you mean NAME?)" where a model that is here has nearly this name, " (of it the
// Hugging Face cache has NAME)" where only the file is another one, else "".
std::string DidYouMean(const std::string& text);
// Says whether a word is a folder in which no model is.
bool IsFolderWithoutModel(const std::string& text);
// Says whether a word may be meant as the name of a model: it has letters, digits, ".", "-" and "_"
// alone, and has a digit, begins as families of models do, or is nearly the name of one that is
// here.
bool MayBeModel(const std::string& text);
// Says whether a word is written as the name of a model: owner/name, NAME:TAG, or NAME-0.6b.
bool IsLikeModel(const std::string& text);
// Takes the argument that names a model as --model. kInvalidArgument: --model is given too.
Result<Args> WithModelOperand(const Args& given);

}  // namespace kvasir::cli
