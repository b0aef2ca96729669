#include "hub/pull.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/file_name.h"
#include "base/result.h"
#include "hub/blob_writer.h"
#include "hub/file_choice.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/shard_index.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

// Follows links; nullopt: there is no such file.
std::optional<uint64_t> SizeOf(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  return error ? std::nullopt : std::optional(bytes);
}

std::vector<HubFile> FilesOf(const RepoListing& listing, const std::vector<std::string>& names) {
  std::vector<HubFile> files;
  for (const HubFile& file : listing.files) {
    if (std::ranges::find(names, file.name) != names.end()) files.push_back(file);
  }
  return files;
}

std::vector<std::string> Joined(std::vector<std::string> names,
                                const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

// One pull: the commit's files that are wanted, and the steps over them.
class Puller {
 public:
  Puller(const HubSettings& settings, const RepoRef& ref, const PullWatch& watch)
      : cache_(settings.cache), ref_(ref), watch_(watch) {}

  Result<PulledModel> Run(HubClient& client) {
    KV_ASSIGN(const RepoListing listing, client.List(ref_, watch_.retry));
    KV_ASSIGN(const FileChoice choice, ChooseModel(listing.Names(), ref_.choice,
                                                   RepoRef{ref_.repo, ref_.revision, {}}.Text()));
    pulled_.commit = listing.commit;
    KV_ASSIGN(const auto lock, cache_.Lock(ref_.repo, kRepoLock, watch_.wait));
    KV_TRY(MakeFolder(cache_.Repo(ref_.repo) / "blobs"));
    KV_ASSIGN(const std::vector<std::string> shards, FetchShardNames(client, listing, choice));
    files_ = FilesOf(listing, Joined(choice.files, shards));
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
  // Tells whether the snapshot holds the file itself, as it does where a cache has no links.
  bool IsLinked(const HubFile& file) const {
    return SizeOf(cache_.Snapshot(ref_.repo, pulled_.commit) / file.name) == file.size_bytes;
  }
  bool IsHere(const HubFile& file) const {
    return SizeOf(BlobPath(file)) == file.size_bytes || IsLinked(file);
  }

  // Fetches the index of a folder that has one: which files the weights are, only it says.
  Result<std::vector<std::string>> FetchShardNames(HubClient& client, const RepoListing& listing,
                                                   const FileChoice& choice) {
    const auto is_index = [](const std::string& file) { return file == kIndexFile; };
    if (!choice.is_folder() || std::ranges::none_of(choice.files, is_index)) {
      return std::vector<std::string>();
    }
    const HubFile index = FilesOf(listing, {std::string(kIndexFile)}).front();
    if (index.size_bytes > kMaxIndexBytes) {
      return Fail(Code::kCorruption, "{}: {} has {} bytes; at most {} are read", ref_.Text(),
                  index.name, index.size_bytes, kMaxIndexBytes);
    }
    if (!IsHere(index)) total_bytes_ += index.size_bytes;
    KV_TRY(FetchOne(client, index));
    const fs::path blob = BlobPath(index);
    auto shards = ReadShardNames(SizeOf(blob) == index.size_bytes
                                     ? blob
                                     : cache_.Snapshot(ref_.repo, pulled_.commit) / index.name);
    if (!shards) {
      return Fail(shards.error().code, "{}: {}: {}", ref_.Text(), index.name,
                  shards.error().message);
    }
    for (const std::string& shard : *shards) {
      if (!FilesOf(listing, {shard}).empty()) continue;
      return Fail(Code::kNotFound, "{}: {} names {}, which the repository does not have",
                  ref_.Text(), index.name, Printable(shard));
    }
    return shards;
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
