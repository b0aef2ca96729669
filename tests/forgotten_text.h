// Finds the tokens of a text that is to be forgotten in all that its session has read: by the bytes
// of each token, and not as src/api finds them. The vocabulary also has tokens that end within a
// character.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/session_forget.h"
#include "api/session_prompt.h"
#include "engine_scenario.h"

namespace kvasir {

// Returns a copy of the bundled model in which " é" begins with a token of the space and the first
// byte of the letter. It takes the place of the vocabulary's last token.
inline std::string ModelThatSplitsCharacters() {
  const std::filesystem::path folder = ScratchDir() / "splits-characters";
  if (std::filesystem::exists(folder)) return folder;
  std::filesystem::copy(*DemoOptions().model, folder);
  std::ifstream file(folder / "tokenizer.json");
  std::string json((std::istreambuf_iterator<char>(file)), {});
  const auto put = [&](const std::string& last, const std::string& with) {
    const size_t at = json.rfind(last);
    EXPECT_NE(at, json.npos) << last;
    json.replace(std::min(at, json.size()), last.size(), with);
  };
  put("\"ĠPavel\": 1023", "\"ĠÃ\": 1023");
  put("\"ĠP\"", "\"Ġ\"");  // its merge
  put("\"avel\"", "\"Ã\"");
  std::ofstream(folder / "tokenizer.json") << json;
  return folder;
}

// What a forget is asked: messages of a session, or a part of one of them.
struct AskedForget {
  MessageRange messages;
  std::optional<ContentBytes> part;  // of the first message; absent: all of it
};

// The texts that a forget is to erase, one for each prompt that has such a text: `first` and `last`
// are the tokens of its first and its last byte. `kept`: all that other sessions say.
class ForgottenTexts {
 public:
  // Keeps them all by reference: they must outlive it.
  ForgottenTexts(const SessionState& state, const AskedForget& asked, const ForgetScope& scope)
      : state_(state),
        asked_(asked),
        owner_(scope.cache_owner),
        bytes_(scope.model.tokenizer->BytesOfTokens()->of) {
    for (const auto& other : scope.others) {
      for (size_t i = 0; i < other->paths.size(); ++i) kept_.push_back(IdsOf(other->paths, i));
      if (auto prompt = PromptOf(*other, scope.model)) kept_.push_back(prompt->chat.ids);
    }
    if (const auto next = PromptOf(state, scope.model)) {
      SessionState shown = state;
      shown.dropped = next->dropped;
      next_ = next->chat.ids;
      AddPrompt(next_, BeginsOf(shown, next->chat));
    }
    for (size_t i = 0; i < state.paths.size(); ++i) {
      AddPrompt(IdsOf(state.paths, i), BeginsOf(state.paths, i));
    }
  }
  std::vector<ForgetRequest> Take() { return std::move(texts_); }

 private:
  using Ids = std::vector<TokenId>;

  void AddPrompt(const Ids& ids, const std::vector<SessionPath::Begin>& begins) {
    for (size_t k = 0; k < begins.size(); ++k) {
      size_t end = ids.size();
      for (size_t next = k + 1; next < begins.size() && end == ids.size(); ++next) {
        if (begins[next].at > begins[k].at) end = std::min<size_t>(end, begins[next].at);
      }
      for (size_t i = asked_.messages.begin; i < asked_.messages.end; ++i) {
        const SessionMessage& message = *state_.messages[i];
        if (message.number != begins[k].number || begins[k].at >= ids.size()) continue;
        const bool is_same = message.version == begins[k].version;
        const auto [first, last] = Find(ids, begins[k].at, end, message, is_same);
        texts_.push_back({.owner = owner_,
                          .cache_salt = std::nullopt,
                          .ids = ids,
                          .first = static_cast<uint32_t>(first),
                          .last = static_cast<uint32_t>(last),
                          .adapters = "",
                          .kept = kept_});
      }
    }
  }

  // Returns the first and the last token of the text in the tokens [begin, end) of its message. A
  // part of an older text counts where the prompt that would come next begins with it, else all
  // of that text is meant.
  std::pair<size_t, size_t> Find(const Ids& ids, size_t begin, size_t end,
                                 const SessionMessage& message, bool is_same) const {
    if (BytesOf(ids[begin]) == "<|bos|>" && begin + 1 < end) ++begin;
    std::string text;            // after the mark of the role
    std::vector<size_t> owners;  // the token of each byte
    for (size_t i = begin + 1; i < ids.size(); ++i) {
      text += BytesOf(ids[i]);
      owners.resize(text.size(), i);
    }
    const ContentBytes part = asked_.part.value_or(ContentBytes{0, message.content.size()});
    const size_t bytes = std::max(part.begin + 1, part.end);
    const std::string said = message.content.substr(0, is_same ? std::string::npos : part.end);
    if (text.starts_with(said) && bytes <= text.size()) {
      const size_t last = owners[bytes - 1];
      const bool is_next =
          std::ranges::mismatch(ids, next_).in1 - ids.begin() > std::ptrdiff_t(last);
      if (is_same || is_next) return {owners[part.begin], last};
    }
    // The template writes one token after the content.
    const size_t least = std::min(begin + 1, end - 1);
    const size_t last = BytesOf(ids[end - 1]) == "<|end|>" ? end - 2 : end - 1;
    return {least, std::max(least, last)};
  }

  const std::string& BytesOf(TokenId id) const { return bytes_[static_cast<uint32_t>(id)]; }

  const SessionState& state_;
  const AskedForget& asked_;
  const std::string owner_;
  const std::vector<std::string> bytes_;
  Ids next_;  // the prompt that would come next
  std::vector<Ids> kept_;
  std::vector<ForgetRequest> texts_;
};

}  // namespace kvasir
