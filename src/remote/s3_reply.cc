#include "remote/s3_reply.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMostWords = 300;

// Takes the first <tag>...</tag> from the text, with what is before it, and returns what is in it.
std::optional<std::string_view> TakeElement(std::string_view* xml, std::string_view tag) {
  const std::string open = "<" + std::string(tag) + ">", close = "</" + std::string(tag) + ">";
  const size_t begin = xml->find(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = xml->find(close, begin);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view inside = xml->substr(begin + open.size(), end - begin - open.size());
  xml->remove_prefix(end + close.size());
  return inside;
}

std::string ElementOf(std::string_view xml, std::string_view tag) {
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'},   {"&gt;", '>'},
                                                             {"&quot;", '"'}, {"&apos;", '\''},
                                                             {"&#39;", '\''}, {"&amp;", '&'}};
  std::string_view left = TakeElement(&xml, tag).value_or("");
  std::string text;
  while (!left.empty()) {
    const auto entity = std::ranges::find_if(
        kEntities, [&](const auto& one) { return left.starts_with(one.first); });
    const bool is_plain = entity == std::end(kEntities);
    text += is_plain ? left[0] : entity->second;
    left.remove_prefix(is_plain ? 1 : entity->first.size());
  }
  return text;
}

}  // namespace

std::string S3ErrorWords(int status, std::string_view xml) {
  const std::string code = ElementOf(xml, "Code"), message = ElementOf(xml, "Message");
  std::string words = code.empty() ? fmt::format("the store answers with status {}", status) : code;
  if (!code.empty() && !message.empty()) words += ": " + message;
  if (words.size() > kMostWords) words.resize(kMostWords);
  std::ranges::replace_if(
      words, [](char c) { return c < ' ' || c > '~'; }, '?');
  return words;
}

Result<S3List> ReadS3List(std::string_view xml, size_t most) {
  const auto wrong = [] {
    return Fail(Code::kCorruption, "what the store sent is not a list of names");
  };
  std::string_view head = xml;
  if (xml.find("<ListBucketResult") == std::string_view::npos ||
      xml.find("</ListBucketResult>") == std::string_view::npos) {
    return wrong();
  }
  S3List list{.names = {}, .is_cut = TakeElement(&head, "IsTruncated") == "true"};
  while (const auto entry = TakeElement(&xml, "Contents")) {
    std::string name = ElementOf(*entry, "Key");
    if (name.empty() || list.names.size() == most) return wrong();
    list.names.push_back(std::move(name));
  }
  return list;
}

}  // namespace kvasir
