#include "hub/pull.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/result.h"
#include "hub/blob_writer.h"
#include "hub/file_choice.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

// Follows links; nullopt: there is no such file.
std::optional<uint64_t> SizeOf(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  return error ? std::nullopt : std::optional(bytes);
}

std::vector<HubFile> FilesOf(const RepoListing& listing, const FileChoice& choice) {
  std::vector<HubFile> files;
  for (const HubFile& file : listing.files) {
    if (std::ranges::find(choice.files, file.name) != choice.files.end()) files.push_back(file);
  }
  return files;
}

// One pull: the commit's files that are wanted, and the steps over them.
class Puller {
 public:
  Puller(const HubSettings& settings, const RepoRef& ref, const PullWatch& watch)
      : cache_(settings.cache), ref_(ref), watch_(watch) {}

  Result<PulledModel> Run(HubClient& client) {
    KV_ASSIGN(const RepoListing listing, client.List(ref_));
    KV_ASSIGN(const FileChoice choice, ChooseModel(listing.Names(), ref_.choice,
                                                   RepoRef{ref_.repo, ref_.revision, {}}.Text()));
    files_ = FilesOf(listing, choice);
    pulled_.commit = listing.commit;
    KV_ASSIGN(const auto lock, cache_.Lock(ref_.repo, kRepoLock, watch_.wait));
    KV_TRY(MakeFolder(cache_.Repo(ref_.repo) / "blobs"));
    KV_TRY(CheckRoom());
    for (const HubFile& file : files_) KV_TRY(FetchOne(client, file));
    for (const HubFile& file : files_) {
      if (IsLinked(file)) continue;
      KV_TRY(cache_.Link(ref_, pulled_.commit, file.name, file.blob));
    }
    KV_TRY(cache_.WriteRef(ref_, pulled_.commit));
    pulled_.path = cache_.Snapshot(ref_.repo, pulled_.commit);
    if (!choice.is_folder()) pulled_.path /= choice.label;
    return pulled_;
  }

 private:
  fs::path BlobPath(const HubFile& file) const { return cache_.Blob(ref_.repo, file.blob); }
  // Where a cache has no links, the snapshot holds the file itself.
  bool IsLinked(const HubFile& file) const {
    return SizeOf(cache_.Snapshot(ref_.repo, pulled_.commit) / file.name) == file.size_bytes;
  }
  bool IsHere(const HubFile& file) const {
    return SizeOf(BlobPath(file)) == file.size_bytes || IsLinked(file);
  }

  Status CheckRoom() {
    uint64_t needed_bytes = 0;
    std::set<std::string> blobs;  // two files may be one blob
    for (const HubFile& file : files_) {
      ++pulled_.num_files;
      pulled_.total_bytes += file.size_bytes;
      if (IsHere(file) || !blobs.insert(file.blob).second) continue;
      total_bytes_ += file.size_bytes;
      const uint64_t have_bytes = SizeOf(BlobWriter::DraftOf(BlobPath(file))).value_or(0);
      needed_bytes += file.size_bytes - std::min(have_bytes, file.size_bytes);
    }
    std::error_code error;
    const fs::space_info space = fs::space(cache_.root(), error);
    if (error || space.available >= needed_bytes) return {};
    return Fail(Code::kExhausted,
                "{} needs {} more bytes, and {} has {} free: free some ('kvasir models' lists "
                "the cache), or set HF_HUB_CACHE to a folder of another disk",
                ref_.Text(), needed_bytes, cache_.root().string(), space.available);
  }

  Status FetchOne(HubClient& client, const HubFile& file) {
    if (IsHere(file)) return {};
    KV_ASSIGN(const auto lock, cache_.Lock(ref_.repo, file.blob, watch_.wait));
    if (IsHere(file)) return {};  // another program has fetched it meanwhile
    const uint64_t before_bytes = done_bytes_;
    const auto progress = [&](uint64_t bytes) {
      done_bytes_ = before_bytes + bytes;
      watch_.progress(file.name, done_bytes_, total_bytes_);
    };
    KV_ASSIGN(const auto writer, BlobWriter::Open(file, BlobPath(file), progress));
    const uint64_t kept_bytes = writer->offset();
    KV_TRY(client.Fetch(ref_, pulled_.commit, file, *writer));
    pulled_.fetched_bytes += file.size_bytes - kept_bytes;
    return writer->Publish();
  }

  const HubCache cache_;
  const RepoRef& ref_;
  const PullWatch& watch_;
  std::vector<HubFile> files_;
  PulledModel pulled_;
  uint64_t total_bytes_ = 0;  // of the files to fetch
  uint64_t done_bytes_ = 0;   // of those
};

}  // namespace

Result<PulledModel> Pull(const HubSettings& settings, const RepoRef& ref, const PullWatch& watch) {
  if (settings.is_offline) {
    return Fail(Code::kUnavailable,
                "{} cannot be fetched, because HF_HUB_OFFLINE forbids the network; unset it",
                ref.Text());
  }
  KV_ASSIGN(const std::unique_ptr<HubClient> client, HubClient::Create(settings));
  return Puller(settings, ref, watch).Run(*client);
}

}  // namespace kvasir::hub
