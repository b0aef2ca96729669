#include "grammar/matcher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "grammar/grammar_text.h"
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

// The tokens that Mask allows.
std::vector<TokenId> Legal(const Matcher& matcher, TokenMasks& masks) {
  std::vector<uint64_t> words(MaskWords(masks.trie().num_tokens()), ~uint64_t{0});
  matcher.Mask(masks, words);
  return IdsOf(words);
}

// The same in pieces of a few steps.
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

// A random grammar and, by its definition, which texts it has: slow and plain.
class NaiveGrammar {
 public:
  explicit NaiveGrammar(Random& random) : random_(random) {
    const size_t num = 1 + random.Below(3);
    for (size_t i = 0; i < num; ++i) source_.AddRule("r" + std::to_string(i));
    for (size_t i = 0; i < num; ++i) source_.Define(static_cast<RuleId>(i), Make(3));
  }

  Result<std::shared_ptr<const Grammar>> Compile() const {
    return Grammar::Compile(source_, RuleId{0});
  }
  // REQUIRES: the grammar compiles (no left recursion).
  bool Has(const std::string& text) {
    text_ = text;
    known_.clear();
    return Ends(*source_.rule(RuleId{0}).expression, 0).contains(text.size());
  }

 private:
  using Kind = GrammarSource::Kind;

  ExpressionId Make(int depth) {
    const uint64_t kind = random_.Below(depth == 0 ? 3 : 9);
    const auto parts = [&] {
      std::vector<ExpressionId> made(random_.Below(4));
      for (ExpressionId& part : made) part = Make(depth - 1);
      return made;
    };
    switch (kind) {
      case 0: {
        std::string text;
        for (uint64_t i = random_.Below(3); i > 0; --i) text += "ab"[random_.Below(2)];
        return source_.Literal(text);
      }
      case 1:
        return source_.Class({{U'a', U'a' + static_cast<char32_t>(random_.Below(2))}});
      case 2:
        return source_.Call(static_cast<RuleId>(random_.Below(source_.rules().size())));
      case 3:
      case 4:
        return source_.Sequence(parts());
      case 5:
        return source_.Choice(parts());
      case 6: {
        const auto min = static_cast<uint32_t>(random_.Below(3));
        std::optional<uint32_t> max;
        if (random_.Below(2) == 0) max = min + static_cast<uint32_t>(random_.Below(3));
        return source_.Repeat(Make(depth - 1), min, max);
      }
      case 7: {
        std::vector<std::string> marks(1 + random_.Below(2));
        for (std::string& mark : marks) {
          for (uint64_t i = 1 + random_.Below(3); i > 0; --i) mark += "ab"[random_.Below(2)];
        }
        return random_.Below(2) == 0 ? source_.Until(marks) : source_.Without(marks);
      }
      default: {
        std::vector<GrammarSource::ListItem> items(random_.Below(4));
        for (auto& item : items) item = {Make(depth - 1), random_.Below(2) == 0};
        return source_.List(source_.Literal("b"), items, Make(0));
      }
    }
  }

  // Where texts of the expression that begin at `begin` end.
  std::set<size_t> Ends(ExpressionId id, size_t begin) {
    const auto key = std::pair(id, begin);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    return known_[key] = Find(source_.expression(id), begin);
  }
  std::set<size_t> After(const std::set<size_t>& begins, ExpressionId id) {
    std::set<size_t> all;
    for (const size_t begin : begins) all.merge(Ends(id, begin));
    return all;
  }
  std::set<size_t> Find(const GrammarSource::Expression& of, size_t begin) {
    switch (of.kind) {
      case Kind::kLiteral: {
        const std::string_view bytes = source_.bytes(of);
        if (std::string_view(text_).substr(begin, bytes.size()) != bytes) return {};
        return {begin + bytes.size()};
      }
      case Kind::kClass: {
        const CharRange range = source_.ranges(of)[0];
        if (begin == text_.size() || static_cast<char32_t>(text_[begin]) > range.last ||
            static_cast<char32_t>(text_[begin]) < range.first) {
          return {};
        }
        return {begin + 1};
      }
      case Kind::kSequence: {
        std::set<size_t> ends{begin};
        for (const auto& part : source_.items(of)) ends = After(ends, part.expression);
        return ends;
      }
      case Kind::kChoice: {
        std::set<size_t> ends;
        for (const auto& part : source_.items(of)) ends.merge(Ends(part.expression, begin));
        return ends;
      }
      case Kind::kRepeat: {
        std::set<size_t> now{begin}, ends;
        // More than the text's size repetitions only add empty ones.
        const uint32_t most = std::min<uint32_t>(of.max.value_or(100), 3 + 2 + 8);
        for (uint32_t i = 0; i <= most && !now.empty(); ++i) {
          if (i >= of.min) ends.insert(now.begin(), now.end());
          now = i < most ? After(now, *of.of) : std::set<size_t>();
        }
        return ends;
      }
      case Kind::kCall:
        return Ends(*source_.rule(of.rule).expression, begin);
      case Kind::kUntil:
      case Kind::kWithout: {
        std::set<size_t> without;
        for (size_t end = begin; end <= text_.size(); ++end) {
          const std::string_view read = std::string_view(text_).substr(begin, end - begin);
          for (const auto& item : source_.items(of)) {
            const std::string_view mark = source_.bytes(source_.expression(item.expression));
            if (read.find(mark) == read.npos) continue;
            return of.kind == Kind::kUntil ? std::set<size_t>{end} : without;
          }
          without.insert(end);
        }
        return of.kind == Kind::kUntil ? std::set<size_t>{} : without;
      }
      case Kind::kList: {
        std::set<size_t> none{begin}, some;  // where it stands without and with an item
        const auto items = source_.items(of);
        for (const auto& item : items.first(items.size() - 1)) {
          std::set<size_t> with = After(none, item.expression);
          with.merge(After(After(some, *of.of), item.expression));
          if (item.is_optional) {
            some.merge(with);
          } else {
            none.clear();
            some = with;
          }
        }
        some = After(some, items.back().expression);
        some.merge(none);
        return some;
      }
    }
    return {};
  }

  Random& random_;
  GrammarSource source_;
  std::string text_;
  std::map<std::pair<ExpressionId, size_t>, std::set<size_t>> known_;
};

// All texts of a and b of at most this size, the shorter first.
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
        // Of Advance alone some tokens have more than kMaxPlaces places on their way.
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
      const std::optional<Matcher> behind = AdvanceInPieces(matcher, text, piece);
      ASSERT_TRUE(behind.has_value());
      ASSERT_TRUE(matcher.Advance(text));
      ASSERT_EQ(Legal(*behind, masks), Legal(matcher, masks));
    }
  }
  EXPECT_GT(checked, kGrammars / 20);
  EXPECT_LE(too_ambiguous, checked / 200);
  EXPECT_LE(masks.bytes(), 1U << 20);
  EXPECT_EQ(none.bytes(), 0U);
}

// The tokens that Advance takes at each step of random texts are those of the mask.
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

TEST(RegularExpression, ReadsWhatItNames) {
  const auto matches = [](std::string_view pattern, std::string_view text) {
    const auto grammar = CompileGrammarText(FormatLanguage::kRegularExpression, pattern);
    EXPECT_TRUE(grammar.has_value()) << pattern << ": " << grammar.error().message;
    if (!grammar) return false;
    Matcher matcher(*grammar);
    return matcher.Advance(text) && matcher.Accepts();
  };
  EXPECT_TRUE(matches("^[a-c]+(?:x|yy)?\\d{2,3}$", "abyy123"));
  EXPECT_FALSE(matches("[a-c]+(x|yy)?\\d{2,3}", "abyy1"));
  EXPECT_TRUE(matches("\\w+\\s\\S+?", "a_1 -b"));
  EXPECT_FALSE(matches("\\D", "1"));
  EXPECT_TRUE(matches("[^\\d\\s]\\.\\u00e4\\x41",
                      "x.\xC3\xA4"
                      "A"));
  EXPECT_TRUE(matches("(?<year>\\d{4})-{0,1}a{2,}b{x", "2024-aaab{x"));
  EXPECT_FALSE(matches("a.b", "a\nb"));
  EXPECT_TRUE(matches("a|b|", ""));
}

TEST(RegularExpression, SaysWhatItDoesNotSupport) {
  const auto error = [](std::string_view pattern) {
    const auto grammar = CompileGrammarText(FormatLanguage::kRegularExpression, pattern);
    EXPECT_FALSE(grammar.has_value()) << pattern;
    return grammar ? "" : grammar.error().message;
  };
  for (const std::string_view pattern : {"(a",
                                         "a)",
                                         "[a",
                                         "a**",
                                         "*a",
                                         "a++",
                                         "\\b",
                                         "\\1",
                                         "\\pL",
                                         "(?=a)",
                                         "(?<!a)",
                                         "a^b",
                                         "a$b",
                                         "(a$)",
                                         "[b-a]",
                                         "[\\d-z]",
                                         "a{3,2}",
                                         "a{999999999}",
                                         "a{2,99999999999999}",
                                         "\\",
                                         "\\x4",
                                         "[]",
                                         "\xFF",
                                         "((((a{99}){99}){99}){99})"}) {
    EXPECT_NE(error(pattern), "") << pattern;
  }
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
