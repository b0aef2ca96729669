#include "hub/repo_listing.h"

#include <optional>
#include <set>

#include "base/file_name.h"
#include "base/hex.h"
#include "base/json_tree.h"
#include "base/result.h"
#include "hub/repo_ref.h"

namespace kvasir::hub {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

std::optional<std::string> TextOf(const JsonValue* object, std::string_view key) {
  const JsonValue* value = object == nullptr ? nullptr : object->Find(key);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return std::string(value->text());
}

// Returns the name of the blob: what the hub calls the file's content in its ETag.
Result<std::string> BlobOf(const JsonValue& sibling, const std::string& name) {
  const std::optional<std::string> sha256 = TextOf(sibling.Find("lfs"), "sha256");
  const std::optional<std::string> blob = sha256 ? sha256 : TextOf(&sibling, "blobId");
  if (blob && IsHex(*blob) && blob->size() == (sha256 ? 64 : 40)) return *blob;
  return Fail(
      Code::kCorruption,
      "the hub's list has no checksum of {}: lfs.sha256 and blobId are missing or not valid", name);
}

Result<HubFile> ParseFile(const JsonValue& sibling) {
  const std::optional<std::string> name = TextOf(&sibling, "rfilename");
  if (!name || !IsSafeFile(*name)) {
    return Fail(Code::kCorruption,
                "the hub's list has the file name '{}', which would lead out of its folder or "
                "cannot be written; nothing is fetched",
                Printable(name.value_or("")));
  }
  const JsonValue* size = sibling.Find("size");
  const bool is_size = size != nullptr && size->kind() == JsonValue::Kind::kInteger &&
                       size->integer() >= 0 && size->integer() <= kMaxFileBytes;
  if (!is_size) return Fail(Code::kCorruption, "the hub's list has no valid size of {}", *name);
  KV_ASSIGN(std::string blob, BlobOf(sibling, *name));
  return HubFile{*name, static_cast<uint64_t>(size->integer()), std::move(blob)};
}

}  // namespace

std::vector<std::string> RepoListing::Names() const {
  std::vector<std::string> names;
  for (const HubFile& file : files) names.push_back(file.name);
  return names;
}

Result<RepoListing> ParseListing(std::string_view json) {
  JsonTree tree;
  const std::optional<JsonValue> root = tree.Parse(json);
  const std::optional<std::string> commit = root ? TextOf(&*root, "sha") : std::nullopt;
  const JsonValue* siblings = root ? root->Find("siblings") : nullptr;
  if (!commit || !IsCommit(*commit) || siblings == nullptr || !siblings->is_array()) {
    return Fail(Code::kCorruption,
                "the hub's answer is not the list of a model's files (no sha or siblings); is "
                "HF_ENDPOINT the address of a hub?");
  }
  RepoListing listing{*commit, {}};
  std::set<std::string> names;
  for (const JsonValue& sibling : siblings->items()) {
    KV_ASSIGN(HubFile file, ParseFile(sibling));
    if (!names.insert(file.name).second) {
      return Fail(Code::kCorruption, "the hub's list has {} twice", file.name);
    }
    listing.files.push_back(std::move(file));
  }
  return listing;
}

}  // namespace kvasir::hub
