// Bytes as what a hub answers: the list of a model's files, the headers of a response; and as a
// name that a user gives. What is accepted leads to no place outside of the cache.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "fuzz_target.h"
#include "hub/file_choice.h"
#include "hub/http_reply.h"
#include "hub/hub_cache.h"
#include "hub/repo_listing.h"
#include "hub/repo_ref.h"

namespace {

using namespace kvasir::hub;
namespace fs = std::filesystem;

void CheckBelow(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_normal().lexically_relative(folder);
  KV_CHECK(!relative.empty() && *relative.begin() != ".." && relative != ".");
}

void CheckListing(std::string_view text) {
  const auto listing = ParseListing(text);
  if (!listing) {
    KV_CHECK(!listing.error().message.empty());
    return;
  }
  const HubCache cache("/cache");
  const fs::path snapshot = cache.Snapshot("a/b", listing->commit);
  CheckBelow(snapshot, "/cache/models--a--b/snapshots");
  for (const HubFile& file : listing->files) {
    CheckBelow(snapshot / file.name, snapshot);
    CheckBelow(cache.Blob("a/b", file.blob), "/cache/models--a--b/blobs");
  }
  for (const FileChoice& model : ModelsAmong(listing->Names())) {
    KV_CHECK(!model.files.empty());
    const auto chosen = ChooseModel(listing->Names(), model.label, "fuzz");
    KV_CHECK(!chosen || chosen->label == model.label);
  }
}

void CheckRef(std::string_view text) {
  const auto ref = ParseRepoRef(text);
  if (!ref) return;
  KV_CHECK(ref->Text() == text);
  const HubCache cache("/cache");
  CheckBelow(cache.Repo(ref->repo), "/cache");
  CheckBelow(cache.Repo(ref->repo) / "refs" / ref->Revision(), cache.Repo(ref->repo) / "refs");
  KV_CHECK(RepoOfFolder(cache.Repo(ref->repo).filename().string()) == ref->repo);
}

}  // namespace

KV_FUZZ_TARGET(hub)(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckListing(text);
  HttpReply reply;
  for (size_t begin = 0; begin < size;) {
    const size_t end = std::min(text.find('\n', begin), size);
    CheckRef(text.substr(begin, end - begin));
    TakeHeaderLine(text.substr(begin, end - begin), reply);
    begin = end + 1;
  }
  return 0;
}
