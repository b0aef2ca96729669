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

// The texts that a forget or a delete is to erase, one for each prompt that has such a text:
// `first` and `last` are the tokens of its first and its last byte; an answer ends there, and every
// other whole message with the mark after it. A path that a forget has cut in this message, or
// before anybody said something, ends with a token that no prompt has. `kept`: all that other
// sessions say.
class ForgottenTexts {
 public:
  // Keeps them all by reference: they must outlive it.
  ForgottenTexts(const SessionState& state, const AskedForget& asked, const ForgetScope& scope)
      : ForgottenTexts(state, std::optional(asked), scope) {}
  // Finds those of a delete.
  ForgottenTexts(const SessionState& state, const ForgetScope& scope)
      : ForgottenTexts(state, std::nullopt, scope) {}
  std::vector<ForgetRequest> Take() { return std::move(texts_); }

 private:
  using Ids = std::vector<TokenId>;
  using Begins = std::vector<SessionPath::Begin>;
  using CutAt = std::optional<uint32_t>;  // SessionPath::cut_at

  ForgottenTexts(const SessionState& state, std::optional<AskedForget> asked,
                 const ForgetScope& scope)
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
      next_begins_ = BeginsOf(shown, next->chat);
      AddPrompt(next_, next_begins_, std::nullopt);
    }
    for (size_t i = 0; i < state.paths.size(); ++i) {
      AddPrompt(IdsOf(state.paths, i), BeginsOf(state.paths, i), state.paths[i]->cut_at);
    }
  }

  void Add(Ids ids, size_t first, size_t last) {
    if (last == ids.size()) ids.push_back(ForgetRequest::kInNoPrompt);
    texts_.push_back({.owner = owner_,
                      .cache_salt = std::nullopt,
                      .ids = std::move(ids),
                      .first = static_cast<uint32_t>(first),
                      .last = static_cast<uint32_t>(last),
                      .adapters = "",
                      .kept = kept_});
  }

  // A message has the tokens [begin, end) of a prompt.
  struct Said {
    size_t begin, end;
    bool is_cut;  // a forget took the rest of it
  };
  static Said SaidAt(const Begins& begins, size_t k, const Ids& ids, CutAt cut_at) {
    const uint32_t begin = begins[k].at;
    size_t end = ids.size();
    for (size_t next = begins.size() - 1; next > k; --next) {
      if (begins[next].at > begin) end = std::min<size_t>(ids.size(), begins[next].at);
    }
    return {begin, end, cut_at == begin};
  }

  void AddPrompt(const Ids& ids, const Begins& begins, CutAt cut_at) {
    if (!asked_) return AddBeginning(ids, begins, cut_at);
    for (size_t k = 0; k < begins.size(); ++k) {
      for (size_t i = asked_->messages.begin; i < asked_->messages.end; ++i) {
        const SessionMessage& message = *state_.messages[i];
        if (message.number != begins[k].number || begins[k].at >= ids.size()) continue;
        const bool is_same = message.version == begins[k].version;
        const auto [first, last] = Find(ids, SaidAt(begins, k, ids, cut_at), message, is_same);
        Add(ids, first, last);
      }
    }
  }

  static std::optional<size_t> FirstSaid(const Begins& begins, const Ids& ids) {
    for (size_t k = 0; k < begins.size(); ++k) {
      if (!begins[k].is_system && begins[k].at < ids.size()) return k;
    }
    return std::nullopt;
  }

  // Adds what a delete takes: all up to the end of the first message that somebody said.
  void AddBeginning(const Ids& ids, const Begins& begins, CutAt cut_at) {
    if (ids.empty()) return;
    const auto said = FirstSaid(begins, ids);
    if (!said) return Add(ids, 0, &begins == &next_begins_ ? ids.size() - 1 : ids.size());
    Add(ids, 0, LastOf(ids, SaidAt(begins, *said, ids, cut_at), IsAnswer(begins[*said].number)));
  }

  bool IsAnswer(uint64_t number) const {
    return std::ranges::any_of(state_.messages, [&](const auto& message) {
      return message->number == number && message->role == "assistant";
    });
  }

  // Returns the last token of a message of which only the place is known.
  size_t LastOf(const Ids& ids, const Said& place, bool is_answer) const {
    if (place.is_cut) return ids.size();
    size_t mark = place.begin + 1;
    while (mark < place.end && !IsMark(ids[mark])) ++mark;
    return mark < place.end && !is_answer ? mark : mark - 1;
  }
  bool IsMark(TokenId id) const { return BytesOf(id) == "<|end|>"; }

  // Returns the first and the last token of the text in its message. A part of an older text counts
  // where the prompt that would come next begins with it, else all of that text is meant.
  std::pair<size_t, size_t> Find(const Ids& ids, Said place, const SessionMessage& message,
                                 bool is_same) const {
    auto& [begin, end, is_cut] = place;
    if (BytesOf(ids[begin]) == "<|bos|>" && begin + 1 < end) ++begin;
    std::string text;            // after the mark of the role
    std::vector<size_t> owners;  // the token of each byte
    for (size_t i = begin + 1; i < ids.size(); ++i) {
      text += BytesOf(ids[i]);
      owners.resize(text.size(), i);
    }
    const ContentBytes part = asked_->part.value_or(ContentBytes{0, message.content.size()});
    const bool has_end = !asked_->part && message.role != "assistant";
    const size_t bytes = std::max(part.begin + 1, part.end);
    const std::string said = message.content.substr(0, is_same ? std::string::npos : part.end);
    if (text.starts_with(said) && bytes <= text.size()) {
      size_t last = owners[bytes - 1];
      bool is_whole = !has_end || IsMark(ids[last]);
      if (!is_whole && last + 1 < ids.size() && IsMark(ids[last + 1])) ++last, is_whole = true;
      const bool is_next =
          is_whole && std::ranges::mismatch(ids, next_).in1 - ids.begin() > std::ptrdiff_t(last);
      if (is_same || is_next) return {owners[part.begin], last};
    }
    const size_t least = std::min(begin + 1, end - 1);
    return {least, std::max(least, LastOf(ids, place, !has_end))};
  }

  const std::string& BytesOf(TokenId id) const { return bytes_[static_cast<uint32_t>(id)]; }

  const SessionState& state_;
  const std::optional<AskedForget> asked_;  // absent: all of the session
  const std::string owner_;
  const std::vector<std::string> bytes_;
  Ids next_;  // the prompt that would come next
  Begins next_begins_;
  std::vector<Ids> kept_;
  std::vector<ForgetRequest> texts_;
};

}  // namespace kvasir
