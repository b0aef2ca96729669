#include "schedule/request_matcher.h"

#include <utility>

#include "base/fault.h"

namespace kvasir {

MatchResult RequestMatcher::Match(Request& request, std::span<const TokenId> tokens, bool is_long,
                                  MatchOptions options) {
  if (request.spans.plan || !FaultActive(Fault::kForeignResume)) {
    options.most_tokens = request.match_end();
  } else if (request.retention && request.retention->is_heavy()) {
    options.most_tokens = request.exact_end();  // without the weights of the first decision
  }
  return MatchText(request, tokens, is_long, options);
}

MatchResult RequestMatcher::MatchText(Request& request, std::span<const TokenId> tokens,
                                      bool is_long, MatchOptions options) {
  options.reuse = request.shares();
  request.room.account = options.account = tenants_.AccountOf(request.cache_owner());
  const std::vector<TokenId>& source = request.spec.source;
  options.source = {source, static_cast<uint32_t>(source.size())};
  if (source.size() > 1 && FaultActive(Fault::kForeignSource)) {
    options.source.ids = options.source.ids.first(source.size() - 1);
  }
  const auto open = [&](bool long_rope) {
    return cache_.EnterNamespace(request.cache_owner(),
                                 IdentityOf(options_, request.adapters.get(), long_rope),
                                 request.spec.cache_salt, IdentityOf(options_, nullptr, long_rope));
  };
  NamespaceId ns = open(false);
  if (options_.long_rope) {
    options.other_rope = open(true);
    if (is_long) std::swap(ns, options.other_rope);
  }
  return figures_.TimedCache([&] { return cache_.Match(ns, tokens, options); });
}

}  // namespace kvasir
