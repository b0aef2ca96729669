#include "server/call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hex.h"
#include "http/json_body.h"

namespace kvasir {

std::string Call::cache_owner() const {
  return caller.entry ? caller.entry->rules.cache_owner.value_or(tenant()) : tenant();
}

ModelView Call::own_model() const {
  ModelView own = model;
  own.pieces = pieces;
  own.heads = heads;
  return own;
}

std::string_view PathOf(std::string_view target) {
  std::string_view path = target.substr(0, target.find_first_of("?#"));
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

std::string_view SegmentOf(std::string_view path, size_t index) {
  for (; index > 0; --index) path.remove_prefix(std::min(path.find('/', 1), path.size()));
  if (!path.empty()) path.remove_prefix(1);
  return path.substr(0, path.find('/'));
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = text[i] == '%' && i + 2 < text.size()
                          ? HexByte(text[i + 1], text[i + 2], HexCase::kAny)
                          : std::nullopt;
    if (byte) {
      out += static_cast<char>(*byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

namespace {

// Returns the value of the first field in a query whose name `is_wanted`, with that name.
template <typename IsWanted>
std::optional<std::pair<std::string_view, std::string_view>> FindInQuery(std::string_view target,
                                                                         IsWanted is_wanted) {
  const size_t begin = target.find('?');
  if (begin == target.npos) return std::nullopt;
  std::string_view query = target.substr(begin + 1);
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    const size_t equals = std::min(field.find('='), field.size());
    const std::string_view name = field.substr(0, equals);
    if (is_wanted(name)) {
      return std::pair(name, field.substr(std::min(equals + 1, field.size())));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> QueryValue(std::string_view target, std::string_view name) {
  const auto found = FindInQuery(target, [&](std::string_view one) { return one == name; });
  return found ? std::optional(PercentDecoded(found->second)) : std::nullopt;
}

std::optional<std::string> UnknownQuery(std::string_view target,
                                        std::initializer_list<std::string_view> known) {
  const auto found = FindInQuery(target, [&](std::string_view one) {
    return !one.empty() && std::ranges::find(known, one) == known.end();
  });
  return found ? std::optional(PercentDecoded(found->first)) : std::nullopt;
}

HttpResponse JsonResponse(const nlohmann::json& body) {
  HttpResponse response;
  response.body = Dump(body);
  return response;
}

Error NotFound(std::string message) { return {Code::kNotFound, std::move(message)}; }

}  // namespace kvasir
