#include "server/prefix_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/parts.h"
#include "base/sizes.h"
#include "http/errors.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kSessions = 100;   // the newest, whose text is shown
constexpr size_t kTextTokens = 64;  // of a run
// Ids of sessions that are compared for an answer: some milliseconds of a connection's thread.
constexpr size_t kComparedIds = size_t{1} << 20;

// The beginning of a run that one of the caller's sessions has read.
struct ShownRun {
  std::string session;
  size_t tokens = 0;
};

// Finds the runs that the sessions' prompts go through. A prompt is compared from its first token
// on, so that only a caller that knows all of a run's beginning sees it, and up to the first
// message that its session took back. What was read last comes first; the paths beyond kComparedIds
// are left out.
std::vector<ShownRun> ShownRunsOf(const PrefixList& list,
                                  const std::vector<SessionStore::Entry>& sessions) {
  std::vector<std::vector<uint32_t>> children(list.runs.size() + 1);
  for (uint32_t i = 0; i < list.runs.size(); ++i) {
    const auto parent = list.runs[i].parent;
    children[parent ? *parent + 1 : 0].push_back(i);
  }
  std::vector<ShownRun> shown(list.runs.size());
  size_t ids_left = kComparedIds;
  for (const SessionStore::Entry& entry : sessions) {
    const SessionPaths& paths = entry.state->paths;
    // Where the messages of a path begin is asked of the paths before it.
    const size_t steps = paths.size() * paths.size() / 8;
    if (steps > ids_left) continue;
    ids_left -= steps;
    const std::vector<uint32_t> ends = ContainedTokens(*entry.state);
    for (size_t p = paths.size(); p-- > 0;) {
      const size_t num_ids = paths[p]->shared + paths[p]->ids.size();
      if (num_ids > ids_left) return shown;
      ids_left -= num_ids;
      std::vector<TokenId> ids = IdsOf(paths, p);
      ids.resize(ends[p]);
      std::vector<uint32_t> next = children[0];
      while (!next.empty()) {
        const uint32_t i = next.back();
        next.pop_back();
        const PrefixRun& run = list.runs[i];
        if (run.begin >= ids.size()) continue;
        const auto rest = std::span(ids).subspan(run.begin);
        const auto end = std::ranges::mismatch(run.tokens, rest).in1;
        const auto equal = static_cast<size_t>(end - run.tokens.begin());
        if (equal > shown[i].tokens) shown[i] = {entry.id, equal};
        if (equal < run.tokens.size()) continue;
        next.insert(next.end(), children[i + 1].begin(), children[i + 1].end());
      }
    }
  }
  return shown;
}

json RunJson(const PrefixRun& run, uint32_t index, const ShownRun& shown,
             const Tokenizer* tokenizer) {
  json text;
  if (shown.tokens > 0 && tokenizer != nullptr) {
    const size_t most = std::min(shown.tokens, kTextTokens);
    text = tokenizer->Decode(std::span(run.tokens).first(most), SpecialTokens::kShow);
  }
  return {{"index", index},
          {"parent", run.parent ? json(*run.parent) : json()},
          {"space", run.space},
          {"begin", run.begin},
          {"tokens", run.tokens.size()},
          {"blocks", run.blocks},
          {"used_blocks", run.used_blocks},
          {"hits", run.hits},
          {"session", shown.tokens > 0 ? json(shown.session) : json()},
          {"text", std::move(text)}};
}

Parts PrefixesText(PrefixList list, std::vector<SessionStore::Entry> sessions,
                   const Tokenizer* tokenizer) {
  const std::vector<ShownRun> shown = ShownRunsOf(list, sessions);
  std::string out = R"({"object":"list","has_more":)";
  out += list.has_more ? "true" : "false";
  out += R"(,"data":[)";
  for (uint32_t i = 0; i < list.runs.size(); ++i) {
    if (i > 0) out += ',';
    out += RunJson(list.runs[i], i, shown[i], tokenizer)
               .dump(-1, ' ', false, json::error_handler_t::replace);
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

}  // namespace

Outcome ListPrefixes(const Call& call, SessionStore& sessions) {
  const std::optional<std::string> asked = QueryValue(call.request.target, "limit");
  const std::optional<uint64_t> limit = asked ? ParseUint(*asked) : kMostPrefixRuns;
  if (!limit || *limit == 0 || *limit > kMostPrefixRuns) {
    return ErrorResponse({Code::kInvalidArgument,
                          fmt::format("is not a number between 1 and {}", kMostPrefixRuns),
                          "limit"});
  }
  return LaterAnswer{[&engine = call.engine, tokenizer = call.model.tokenizer,
                      owner = call.cache_owner(), most = static_cast<size_t>(*limit),
                      shown = sessions.Loaded(call.tenant(), kSessions)](LaterAnswer::Reply reply) {
    engine.ListPrefixes(owner, [tokenizer, shown, most, reply](PrefixList list) {
      if (list.runs.size() > most) {  // a run comes after its parent
        list.runs.resize(most);
        list.has_more = true;
      }
      HttpResponse response;
      for (const PrefixRun& run : list.runs) {
        response.rest_bytes += sizeof(run) + sizeof(ShownRun) + run.tokens.size() * sizeof(TokenId);
      }
      // Written later, not on the engine's thread.
      response.rest = PrefixesText(std::move(list), shown, tokenizer);
      reply(std::move(response));
    });
  }};
}

}  // namespace kvasir
