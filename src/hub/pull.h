// Pull: fetches a model from a hub into the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/hub_settings.h"
#include "hub/repo_ref.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Called from Pull's thread.
struct PullWatch {
  // Bytes of `file` that are here, and of all files that are fetched.
  std::function<void(const std::string& file, uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Another process fetches, or removes, the same: the pull waits for it.
  std::function<void()> wait;
  // The hub could not be asked, and is asked again for some seconds. Called once at most.
  std::function<void(const std::string& reason)> retry;
};

struct PulledModel {
  std::filesystem::path path;  // as HubCache::Find gives it
  std::string commit;
  size_t num_files = 0;
  uint64_t total_bytes = 0;
  uint64_t fetched_bytes = 0;  // the others were here before
};

// Fetches the files of the model that `ref` means and that the cache lacks. Only when every file is
// whole and has the checksum of the hub's list are the links of the snapshot made, then the ref. A
// pull that ends early keeps the beginnings of files, from which the next one goes on. Errors:
// those of HubClient, ChooseModel and ParseListing; kUnavailable: HF_HUB_OFFLINE; kExhausted: the
// disk has not enough room.
Result<PulledModel> Pull(const HubSettings& settings, const RepoRef& ref, const PullWatch& watch);

}  // namespace kvasir::hub
