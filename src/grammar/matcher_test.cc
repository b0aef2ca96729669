#include "grammar/matcher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "grammar/grammar_text.h"
#include "grammar/naive_grammar_for_test.h"
#include "grammar/token_masks.h"

namespace kvasir {
namespace {

constexpr int kGrammars = Rounds(100'000, 2'000);

std::shared_ptr<const Grammar> Gbnf(std::string_view text) {
  const auto grammar = CompileGrammarText(FormatLanguage::kGbnf, text);
  EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
  return *grammar;
}

std::shared_ptr<const TokenTrie> Trie(const std::vector<std::string>& texts,
                                      std::vector<TokenId> ends = {}) {
  return std::make_shared<const TokenTrie>(texts, std::move(ends));
}

std::vector<TokenId> IdsOf(const std::vector<uint64_t>& words) {
  std::vector<TokenId> legal;
  for (size_t id = 0; id < words.size() * 64; ++id) {
    if (IsLegal(words, static_cast<TokenId>(id))) legal.push_back(static_cast<TokenId>(id));
  }
  return legal;
}

// Returns the tokens that Mask allows.
std::vector<TokenId> Legal(const Matcher& matcher, TokenMasks& masks) {
  std::vector<uint64_t> words(MaskWords(masks.trie().num_tokens()), ~uint64_t{0});
  matcher.Mask(masks, words);
  return IdsOf(words);
}

// Returns what Legal does, in pieces of a few steps.
std::vector<TokenId> LegalInPieces(const Matcher& matcher, TokenMasks& masks, uint64_t steps) {
  std::vector<uint64_t> words(MaskWords(masks.trie().num_tokens()), ~uint64_t{0});
  MaskWork work(masks, matcher, words);
  for (WalkSteps piece(steps); !work.Run(piece); piece = WalkSteps(steps)) {
    // Each piece ends soon after its steps: at most with a place's edges, or a mask that is joined.
    EXPECT_LE(piece.taken(), steps + 1000);
  }
  return IdsOf(words);
}

std::optional<Matcher> AdvanceInPieces(const Matcher& from, std::string_view text, uint64_t steps) {
  TextWork work(from, text);
  for (WalkSteps piece(steps); !work.Run(piece); piece = WalkSteps(steps)) {
  }
  return std::move(work.next());
}

// Returns all texts of a and b of at most this size, the shorter first.
std::vector<std::string> AllTexts(size_t size) {
  std::vector<std::string> all{""};
  for (size_t i = 0; all[i].size() < size; ++i) {
    all.push_back(all[i] + "a");
    all.push_back(all[i] + "b");
  }
  return all;
}

TEST(Matcher, EqualsANaiveReadingOfRandomGrammars) {
  const std::vector<std::string> texts = AllTexts(5);
  int compiled = 0, legal = 0, too_ambiguous = 0;
  for (int seed = 0; seed < kGrammars; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    NaiveGrammar naive(random);
    const auto grammar = naive.Compile();
    if (!grammar) continue;
    ++compiled;
    std::set<std::string> has, begins;
    for (const std::string& text : texts) {
      if (naive.Has(text)) has.insert(text);
    }
    for (const std::string& text : has) {
      for (size_t i = 0; i <= text.size(); ++i) begins.insert(text.substr(0, i));
    }
    for (const std::string& text : texts) {
      Matcher whole(*grammar);
      const bool is_legal = whole.Advance(text);
      if (!is_legal && begins.contains(text)) {  // it would have more than kMaxPlaces places
        ++too_ambiguous;
        break;
      }
      ASSERT_EQ(is_legal && whole.Accepts(), has.contains(text)) << seed << " '" << text << "'";
      if (!is_legal) continue;
      ++legal;
      Matcher bytes(*grammar);
      for (const char byte : text) ASSERT_TRUE(bytes.Advance({&byte, 1})) << seed;
      ASSERT_EQ(bytes.Accepts(), whole.Accepts()) << seed << " '" << text << "'";
    }
  }
  EXPECT_GT(compiled, kGrammars / 4);
  EXPECT_LE(too_ambiguous, kGrammars / 5000);
  EXPECT_GT(legal, compiled);
}

TEST(Matcher, AHiddenTokenWithinAMarkChangesNothing) {
  GrammarSource source;
  const RuleId root = source.AddRule("root");
  const std::vector<std::string> marks = {"<end>", {kMark, 3}};
  source.Define(root, source.Sequence({source.Until(marks), source.Literal("!")}));
  const auto grammar = Grammar::Compile(source, root);
  ASSERT_TRUE(grammar.has_value());
  for (const std::string text : {"<end>!", "a<e<end>!", "<e\xFEnd>!", "\xC3\xFF\x02\xFF\x03!"}) {
    Matcher matcher(*grammar);
    EXPECT_TRUE(matcher.Advance(text)) << text;
    EXPECT_TRUE(matcher.IsAtEnd()) << text;
  }
  Matcher matcher(*grammar);
  EXPECT_FALSE(matcher.Advance("<end>?"));
}

TEST(Matcher, MasksAreTheTokensThatAdvanceTakes) {
  // Some texts are tokens twice, some ids have no text.
  std::vector<std::string> texts = AllTexts(4);
  texts.insert(texts.end(), {"", "a", "c", "abababababab", "ab", "", "bbbbbbb"});
  const auto end = static_cast<TokenId>(texts.size());
  texts.emplace_back();
  TokenMasks masks(Trie(texts, {end}), 1 << 20), none(Trie(texts, {end}), 0);
  int checked = 0, too_ambiguous = 0;
  for (int seed = 0; seed < kGrammars / 5; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    NaiveGrammar naive(random);
    const auto grammar = naive.Compile();
    if (!grammar) continue;
    Matcher matcher(*grammar);
    for (int step = 0; step < 6; ++step) {
      std::vector<TokenId> expected;
      for (size_t id = 0; id < texts.size(); ++id) {
        Matcher copy = matcher;
        if (!texts[id].empty() && copy.Advance(texts[id])) {
          expected.push_back(static_cast<TokenId>(id));
        }
      }
      if (matcher.Accepts()) expected.push_back(end);
      if (const auto legal = Legal(matcher, masks); legal != expected) {
        // Advance alone may meet more than kMaxPlaces places on the way of a token.
        ASSERT_TRUE(std::includes(legal.begin(), legal.end(), expected.begin(), expected.end()));
        ++too_ambiguous;
        break;
      }
      ASSERT_EQ(Legal(matcher, none), expected) << seed << " step " << step;
      const uint64_t piece = 1 + random.Below(40);
      ASSERT_EQ(LegalInPieces(matcher, none, piece), expected) << seed << " step " << step;
      ASSERT_EQ(LegalInPieces(matcher, masks, piece), expected) << seed << " step " << step;
      ASSERT_EQ(matcher.IsAtEnd(), expected == std::vector<TokenId>{end});
      ++checked;
      if (matcher.IsAtEnd()) break;
      const TokenId next = expected[random.Below(expected.size())];
      if (next == end) break;
      const std::string& text = texts[static_cast<size_t>(next)];
      const std::optional<Matcher> after = AdvanceInPieces(matcher, text, piece);
      ASSERT_TRUE(after.has_value());
      ASSERT_TRUE(matcher.Advance(text));
      ASSERT_EQ(Legal(*after, masks), Legal(matcher, masks));
    }
  }
  EXPECT_GT(checked, kGrammars / 20);
  EXPECT_LE(too_ambiguous, checked / 200);
  EXPECT_LE(masks.bytes(), 1U << 20);
  EXPECT_EQ(none.bytes(), 0U);
}

// Checks that the tokens that Advance takes at each step of random texts are those of the mask.
void CheckMasks(const std::shared_ptr<const Grammar>& grammar,
                const std::vector<std::string>& texts) {
  TokenMasks masks(Trie(texts), 1 << 20);
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    Matcher matcher(grammar);
    for (int step = 0; step < 60 && !matcher.IsAtEnd(); ++step) {
      std::vector<TokenId> expected;
      for (size_t id = 0; id < texts.size(); ++id) {
        Matcher copy = matcher;
        if (!texts[id].empty() && copy.Advance(texts[id])) {
          expected.push_back(static_cast<TokenId>(id));
        }
      }
      ASSERT_EQ(Legal(matcher, masks), expected);
      const TokenId next = expected[random.Below(expected.size())];
      ASSERT_TRUE(matcher.Advance(texts[static_cast<size_t>(next)]));
    }
  }
}

uint32_t NumTwins(const Grammar& grammar) {
  uint32_t num = 0;
  for (Grammar::NodeId node = 0; node < grammar.num_nodes(); ++node) {
    num += grammar.twin(node).node != node ? 1 : 0;
  }
  return num;
}

// Nodes of a repetition differ by long tokens alone; their masks are made from each other's.
TEST(Matcher, MasksOfARepetitionKnowHowMuchIsLeft) {
  std::vector<std::string> texts = AllTexts(3);
  texts.emplace_back("!");
  for (const size_t size : {5, 6, 9, 17, 30}) {
    texts.insert(texts.end(), {std::string(size, 'a'), std::string(size, 'b') + "!",
                               std::string(size, 'a') + "!ab", std::string(size - 3, 'b') + "!a!"});
  }
  const auto grammar = Gbnf(R"(root ::= ([ab]{0,40} "!") ([ab]{4,33} "!") [ab]{0,3} "!")");
  EXPECT_GT(NumTwins(*grammar), 50U);
  CheckMasks(grammar, texts);
}

// So do those of a text that has begun a mark, by what goes on with it.
TEST(Matcher, MasksOfABegunMarkKnowHowItGoesOn) {
  std::vector<std::string> texts = AllTexts(4);
  texts.insert(texts.end(), {"c", "!", "abc!", "c!", "bab!", "ab!", "bc", "abac", "ac!"});
  GrammarSource source;
  const RuleId root = source.AddRule("root");
  const std::vector<std::string> marks = {"ababc", "bac"};
  source.Define(root, source.Sequence({source.Until(marks), source.Literal("!")}));
  const auto grammar = Grammar::Compile(source, root);
  ASSERT_TRUE(grammar.has_value());
  EXPECT_GT(NumTwins(**grammar), 4U);
  CheckMasks(*grammar, texts);
}

// Walks with many states and hardly any memory, with and without pieces.
TEST(Matcher, MasksDoNotDependOnTheMemoryOfTheirWalks) {
  std::string text = "root ::= (a | b | c | d)+\n";
  for (const char* rule : {"a", "b", "c", "d"}) {
    text +=
        std::string(rule) + " ::= [ab] a? [bc] | [a-c] b? \"a\" | [bc] c? [ab] | \"b\" d? [a-c]\n";
  }
  std::vector<std::string> texts = AllTexts(Rounds(9, 8));
  for (std::string& one : texts) {
    if (one.size() % 3 == 1) one += 'c';
  }
  TokenMasks much(Trie(texts), 64 << 20), little(Trie(texts), 1 << 15);
  Matcher matcher(Gbnf(text));
  for (const char* token : {"a", "ba", "cab"}) {
    const auto legal = Legal(matcher, much);
    EXPECT_GT(legal.size(), 20U);
    EXPECT_EQ(Legal(matcher, little), legal);
    EXPECT_EQ(LegalInPieces(matcher, little, 1000), legal);
    EXPECT_LE(little.bytes(), 1U << 15);
    ASSERT_TRUE(matcher.Advance(token));
  }
}

TEST(Matcher, ACopyGoesItsOwnWay) {
  Matcher one(Gbnf(R"x(root ::= "(" root* ")")x"));
  ASSERT_TRUE(one.Advance("(()"));
  Matcher other = one;
  ASSERT_TRUE(one.Advance("((("));
  EXPECT_FALSE(one.Accepts());
  ASSERT_TRUE(other.Advance(")"));
  EXPECT_TRUE(other.Accepts());
  EXPECT_TRUE(other.IsAtEnd());
  EXPECT_FALSE(other.Advance("("));
  EXPECT_TRUE(other.Accepts());  // what is not legal changes nothing
  ASSERT_TRUE(one.Advance("))))"));
  EXPECT_TRUE(one.Accepts());
}

TEST(Matcher, HalfACharacterIsLegalWhereSomeContinuationIs) {
  // U+00E4 is C3 A4, U+20AC is E2 82 AC.
  const std::vector<std::string> texts = {"\xC3", "\xA4", "\xE2\x82", "\xE2\x84", "\xC4"};
  TokenMasks masks(Trie(texts), 1 << 20);
  Matcher matcher(Gbnf("root ::= [\\u00e4\\u20ac]+"));
  EXPECT_EQ(Legal(matcher, masks), (std::vector<TokenId>{0, 2}));
  ASSERT_TRUE(matcher.Advance("\xC3"));
  EXPECT_FALSE(matcher.Accepts());
  EXPECT_EQ(Legal(matcher, masks), std::vector<TokenId>{1});
}

TEST(Matcher, TakesDeepTextsUpToALimit) {
  Matcher matcher(Gbnf(R"x(root ::= "(" root? ")")x"));
  ASSERT_TRUE(matcher.Advance(std::string(kMaxOpenRules, '(')));
  Matcher deep = matcher;
  EXPECT_FALSE(deep.Advance("(("));
  EXPECT_TRUE(matcher.Advance(std::string(kMaxOpenRules, ')')));
  EXPECT_TRUE(matcher.Accepts());
}

// Rules that all read the same text, each with its own stack.
TEST(Matcher, ManyDeepStacksTakeBoundedMemory) {
  std::string text = "root ::= r0";
  for (int i = 1; i < 480; ++i) text += fmt::format(" | r{}", i);
  for (int i = 0; i < 480; ++i) text += fmt::format("\nr{0} ::= \"a\" r{0} \"x{0}\" | \"b\"", i);
  Matcher matcher(Gbnf(text));
  int num_read = 0;
  while (num_read < 10'000 && matcher.Advance("a")) ++num_read;
  std::set<const StackFrame*> frames;
  for (const auto& place : matcher.places().places()) {
    const StackFrame* frame = place.frame.get();
    for (; frame != nullptr; frame = frame->below().get()) frames.insert(frame);
  }
  EXPECT_LE(frames.size(), kMaxMadeFrames);
  EXPECT_GE(num_read, 20);
  EXPECT_FALSE(AdvanceInPieces(matcher, "a", 100));
}

// Frames that a text has left do not count.
TEST(Matcher, ALongTextOpensAndClosesManyRules) {
  Matcher matcher(Gbnf(R"x(root ::= pair+
    pair ::= "(" pair? ")")x"));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(matcher.Advance(std::string(9'000, '('))) << i;
    ASSERT_TRUE(matcher.Advance(std::string(9'000, ')'))) << i;
  }
  EXPECT_TRUE(matcher.Accepts());
}

TEST(Matcher, AnAmbiguousGrammarTakesBoundedTime) {
  // Texts of n bytes can be read in exponentially many ways.
  Matcher matcher(Gbnf(R"(root ::= "a" root root | "a" root | "a")"));
  EXPECT_TRUE(matcher.Advance(std::string(200, 'a')));
  EXPECT_TRUE(matcher.Accepts());
  // What would have more than kMaxPlaces places is not legal.
  EXPECT_FALSE(matcher.Advance(std::string(1000, 'a')));
}

TEST(Matcher, SaysThatOnlyALimitForbidsWhatComesNext) {
  Matcher matcher(Gbnf(R"(root ::= "a" root root | "a" root | "a")"));
  EXPECT_FALSE(matcher.HitsLimit(WalkSteps()));
  while (matcher.Advance("a")) {
  }
  EXPECT_TRUE(matcher.HitsLimit(WalkSteps()));
  // Rules that are open from the start on, before anything was read.
  std::string root = "root ::= r0", rules;
  for (int i = 0; i < 2000; ++i) {
    if (i > 0) root += fmt::format(" | r{}", i);
    rules += fmt::format("\nr{} ::= \"{:c}{}\" (r{} | \"\")", i, 'a' + i % 2, i, (i + 1) % 2000);
  }
  Matcher many(Gbnf(root + rules));
  EXPECT_FALSE(many.Advance("a"));
  EXPECT_TRUE(many.HitsLimit(WalkSteps()));
  EXPECT_FALSE(many.HitsLimit(WalkSteps(1))) << "the steps are over";
}

TEST(Matcher, KnowsANodeItHasSeen) {
  std::vector<std::string> texts = AllTexts(4);
  TokenMasks masks(Trie(texts), 1 << 20);
  Matcher matcher(Gbnf(R"(root ::= "a"* "b")"));
  const auto first = Legal(matcher, masks);
  const uint64_t computed = masks.computed();
  ASSERT_TRUE(matcher.Advance("aaa"));
  EXPECT_EQ(Legal(matcher, masks), first);
  EXPECT_EQ(masks.computed(), computed);
  EXPECT_GT(masks.bytes(), 0U);
}

TEST(Texts, AreExactlyThose) {
  const auto grammar = CompileGrammarText(FormatLanguage::kTexts, R"(["red","green","redder"])");
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  ASSERT_TRUE(matcher.Advance("red"));
  EXPECT_TRUE(matcher.Accepts());
  EXPECT_FALSE(matcher.IsAtEnd());
  ASSERT_TRUE(matcher.Advance("der"));
  EXPECT_TRUE(matcher.IsAtEnd());
  EXPECT_FALSE(CompileGrammarText(FormatLanguage::kTexts, "[]").has_value());
}

}  // namespace
}  // namespace kvasir
