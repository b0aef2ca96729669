#include "remote/store_client.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "remote/redis_client.h"
#include "remote/remote_tier_options.h"
#include "remote/s3_client.h"

namespace kvasir {

std::string StoreWords(std::string_view text) {
  constexpr size_t kMost = 200;
  std::string words(text.substr(0, kMost));
  std::ranges::replace_if(
      words, [](char c) { return c < ' ' || c > '~'; }, '?');
  words.resize(words.find_last_not_of(" .,:;") + 1);
  return words.empty() ? "it does not say why" : words;
}

Result<std::unique_ptr<StoreClient>> StoreClient::Create(const RemoteTierOptions& options) {
  if (options.address.s3) return S3Client::Create(options.address, options.s3);
  return std::make_unique<RedisClient>(options.address, options.password, options.tls);
}

uint64_t StoreClient::BytesFor(const RemoteTierOptions& options) {
  return options.address.s3 ? S3Client::BytesFor(options.address)
                            : RedisClient::BytesFor(options.address);
}

Result<StoreReply> StoreClient::Ask(StoreRequest request, const Waits& waits) {
  KV_TRY(Start(std::move(request), waits));
  return Next(waits);
}

}  // namespace kvasir
