// HubClient: the two things that Kvasir asks a hub for: the list of a model's files, and a file.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "hub/blob_writer.h"
#include "hub/http_client.h"
#include "hub/hub_settings.h"
#include "hub/repo_listing.h"
#include "hub/repo_ref.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Repeats a request four times, after half a second, 1, 2 and 4 s (or what Retry-After says, up to
// a minute), where the network or the hub fails for now; as often again whenever bytes have come.
// Errors: kNotFound, kPermissionDenied (401, 403), kUnavailable (429, 5xx), kIoError (the network);
// messages say what to do. One thread.
class HubClient {
 public:
  static Result<std::unique_ptr<HubClient>> Create(const HubSettings& settings);

  // on_retry is called with the reason before the first of the repetitions.
  using OnRetry = std::function<void(const std::string& reason)>;
  Result<RepoListing> List(const RepoRef& ref, const OnRetry& on_retry);
  // Fetches what the writer does not have yet. kIoError too where the hub sends another file.
  Status Fetch(const RepoRef& ref, std::string_view commit, const HubFile& file,
               BlobWriter& writer);

 private:
  HubClient(const HubSettings& settings, std::unique_ptr<HttpClient> http);
  // blob: what the hub must call the content; "": anything.
  Status Get(const RepoRef& ref, const std::string& path, std::string_view blob, Receiver& receiver,
             const OnRetry& on_retry);
  Result<HttpReply> GetOnce(const std::string& url, std::string_view blob, Receiver& receiver);
  tl::unexpected<Error> Refused(const RepoRef& ref, const std::string& url,
                                const HttpReply& reply) const;

  const HubSettings settings_;
  const std::unique_ptr<HttpClient> http_;
};

}  // namespace kvasir::hub
