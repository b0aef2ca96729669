// What grammars cost with a real vocabulary: compiling a schema and the calls of 32 tools, and the
// mask of each token of an answer at nodes that are new and that were seen before. One JSON line
// each.
//
// usage: grammar_bench TOKENIZER_JSON   (of a byte-level vocabulary, such as Qwen 2's)
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/utf8.h"
#include "chat/answer_format.h"
#include "grammar/grammar_text.h"
#include "grammar/matcher.h"
#include "grammar/token_masks.h"
#include "schedule/answer_formats.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

double UsSince(uint64_t start_ns) { return static_cast<double>(MonotonicNs() - start_ns) / 1e3; }

// As many ids as Qwen's models have logits.
constexpr uint32_t kVocabSize = 151'936;

// Returns the bytes of all tokens; added tokens are special: no text.
std::vector<std::string> ReadTokens(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  std::vector<std::string> tokens;
  for (const auto& [key, id] : json.at("model").at("vocab").items()) {
    std::string bytes;
    for (size_t pos = 0; pos < key.size();) {
      const auto byte = ByteOfChar(NextChar(key, &pos));
      if (byte) bytes += static_cast<char>(*byte);
    }
    const auto index = id.get<size_t>();
    if (index >= tokens.size()) tokens.resize(index + 1);
    tokens[index] = bytes;
  }
  tokens.resize(std::max<size_t>(tokens.size(), kVocabSize));
  return tokens;
}

// Returns a schema as tools have them, of so many properties.
std::string ToolSchema(int properties) {
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < properties; ++i) {
    const char* const kinds[] = {
        R"({"type":"string","description":"What the user asked for, in a few words"})",
        R"({"type":"integer","minimum":1,"maximum":500,"description":"How many at most"})",
        R"({"type":"array","items":{"type":"string"},"description":"Names of the places to look in"})",
        R"({"type":"string","enum":["celsius","fahrenheit","kelvin"]})",
        R"({"type":"object","properties":{"a":{"type":"number"},"b":{"type":"boolean"}},"required":["a"]})"};
    schema += fmt::format(R"({}"property_{}":{})", i > 0 ? "," : "", i, kinds[i % 5]);
  }
  return schema + R"(},"required":["property_0"]})";
}

std::shared_ptr<const Grammar> CompileSchema(const std::string& schema) {
  auto grammar = CompileGrammarText(FormatLanguage::kJsonSchema, schema);
  if (!grammar) fmt::print(stderr, "grammar_bench: {}\n", grammar.error().text());
  KV_CHECK(grammar.has_value());
  return *grammar;
}

void TellCompile(const char* name, int properties) {
  const std::string schema = ToolSchema(properties);
  std::vector<double> times_us;
  uint64_t bytes = 0;
  for (int round = 0; round < 9; ++round) {
    const uint64_t start_ns = MonotonicNs();
    bytes = CompileSchema(schema)->bytes();
    times_us.push_back(UsSince(start_ns));
  }
  std::sort(times_us.begin(), times_us.end());
  fmt::print(
      "{{\"bench\":\"compile\",\"schema\":\"{}\",\"schema_bytes\":{},\"grammar_bytes\":{},\"us\":{:"
      ".0f}}}\n",
      name, schema.size(), bytes, times_us[times_us.size() / 2]);
}

// Calls of 32 tools of 1 KB as a request with tools compiles them, with the masks of its wide
// nodes; then the same request again.
void TellTools(const std::string& tokenizer_json) {
  const auto tokenizer = Tokenizer::Parse(tokenizer_json, "");
  KV_CHECK(tokenizer.has_value());
  AnswerFormats formats(tokenizer->get(), kVocabSize, {}, 64 << 20);
  AnswerFormat format{.calls = &FindCallFormat("<tool_call>")};
  format.text = {FormatLanguage::kJsonSchema, "{}", "json_schema"};
  KV_CHECK(formats.Compile(format, "").has_value());  // makes the vocabulary's trie
  format.text.reset();
  size_t schema_bytes = 0;
  for (int i = 0; i < 32; ++i) {
    format.tools.push_back({fmt::format("tool_{}", i), ToolSchema(10)});
    schema_bytes += format.tools.back().parameters.size();
  }
  double us[2];
  for (double& of_round : us) {
    const uint64_t start_ns = MonotonicNs();
    KV_CHECK(formats.Compile(format, "").has_value());
    of_round = UsSince(start_ns);
  }
  fmt::print(
      "{{\"bench\":\"tools\",\"tools\":32,\"schema_bytes\":{},\"us\":{:.0f},\"again_us\":{:.0f}}}"
      "\n",
      schema_bytes, us[0], us[1]);
}

struct Answer {
  const char* name;
  std::shared_ptr<const Grammar> grammar;
  std::string text;
};

// Measures the mask before each token of the text, which is cut into the longest tokens. Does so
// twice: in the second round the grammar's nodes are known.
void TellMasks(const std::vector<std::string>& tokens, const std::shared_ptr<const TokenTrie>& trie,
               const Answer& answer) {
  TokenMasks masks(trie, 64 << 20);
  std::vector<uint64_t> words(MaskWords(trie->num_tokens()));
  std::vector<double> times_us[2];
  double advance_us = 0;
  for (std::vector<double>& of_round : times_us) {
    Matcher matcher(answer.grammar);
    for (size_t pos = 0; pos < answer.text.size();) {
      const uint64_t start_ns = MonotonicNs();
      matcher.Mask(masks, words);
      of_round.push_back(UsSince(start_ns));
      size_t longest = 0;
      for (size_t id = 0; id < tokens.size(); ++id) {
        if (tokens[id].size() > longest &&
            answer.text.compare(pos, tokens[id].size(), tokens[id]) == 0 &&
            IsLegal(words, static_cast<TokenId>(id))) {
          longest = tokens[id].size();
        }
      }
      KV_CHECK(longest > 0);
      const uint64_t advance_ns = MonotonicNs();
      KV_CHECK(matcher.Advance(std::string_view(answer.text).substr(pos, longest)));
      advance_us += UsSince(advance_ns);
      pos += longest;
    }
    KV_CHECK(matcher.Accepts());
  }
  const size_t steps = times_us[0].size();
  for (auto& of_round : times_us) std::sort(of_round.begin(), of_round.end());
  fmt::print(
      "{{\"bench\":\"mask\",\"grammar\":\"{}\",\"tokens\":{},\"first_us\":{:.0f},\"first_max_us\":{"
      ":.0f},"
      "\"seen_us\":{:.1f},\"seen_max_us\":{:.1f},\"advance_us\":{:.2f},\"kept_bytes\":{}}}\n",
      answer.name, steps, times_us[0][steps / 2], times_us[0].back(), times_us[1][steps / 2],
      times_us[1].back(), advance_us / 2 / static_cast<double>(steps), masks.bytes());
}

// Writes rules of random classes that call each other: few tokens are decided alike at two of its
// nodes.
std::string HostileGrammar(uint32_t num_rules, uint32_t num_ranges, uint64_t seed) {
  Random random(seed);
  const auto class_of = [&] {
    std::string text = "[";
    for (uint32_t i = 0; i < num_ranges; ++i) {
      const auto first = static_cast<uint32_t>(0x20 + random.Below(0x3000));
      text += fmt::format("\\u{:04x}-\\u{:04x}", first, first + random.Below(40));
    }
    return text + "a-z ]";
  };
  std::string text = "root ::= r0+\n";
  for (uint32_t i = 0; i < num_rules; ++i) {
    text += fmt::format("r{} ::= ", i);
    for (int way = 0; way < 3; ++way) {
      text += fmt::format("{}{} r{}?", way == 0 ? "" : " | ", class_of(), random.Below(num_rules));
    }
    text += "\n";
  }
  return text;
}

// Measures what a mask of it costs at each of a few tokens.
void TellHostile(const std::shared_ptr<const TokenTrie>& trie, uint32_t num_rules,
                 uint32_t num_ranges) {
  const std::string text = HostileGrammar(num_rules, num_ranges, 7);
  const uint64_t start_ns = MonotonicNs();
  const auto grammar = CompileGrammarText(FormatLanguage::kGbnf, text);
  if (!grammar) return fmt::print(stderr, "{}\n", grammar.error().message);
  const double compile_us = UsSince(start_ns);
  TokenMasks masks(trie, 48 << 20);
  std::vector<uint64_t> words(MaskWords(trie->num_tokens()));
  Matcher matcher(*grammar);
  Random random(3);
  for (int i = 0; i < 4; ++i) {
    MaskWork work(masks, matcher, words);
    WalkSteps steps;
    const uint64_t begin_ns = MonotonicNs();
    work.Run(steps);
    const double us = UsSince(begin_ns);
    std::vector<TokenId> legal;
    for (uint32_t id = 0; id < trie->num_tokens(); ++id) {
      if (IsLegal(words, static_cast<TokenId>(id))) legal.push_back(static_cast<TokenId>(id));
    }
    fmt::print(
        "{{\"bench\":\"hostile\",\"rules\":{},\"gbnf_bytes\":{},\"compile_us\":{:.0f},\"grammar_"
        "bytes\":{},\"places\":{},\"mask_us\":{:.0f},\"steps\":{},\"ns_a_step\":{:.2f},\"legal\":{}"
        ",\"kept_bytes\":{}}}\n",
        num_rules, text.size(), compile_us, (*grammar)->bytes(), matcher.places().places().size(),
        us, steps.taken(), us * 1e3 / static_cast<double>(steps.taken()), legal.size(),
        masks.bytes());
    const auto id = legal[random.Below(legal.size())];
    if (!matcher.Advance(trie->text(id))) break;
  }
}

int Main(const char* file) {
  const auto tokenizer_json = ReadTextFile(file, uint64_t{1} << 28);
  if (!tokenizer_json) {
    fmt::print(stderr, "grammar_bench: {}\n", tokenizer_json.error().text());
    return 2;
  }
  const std::vector<std::string> tokens = ReadTokens(*tokenizer_json);
  const uint64_t start_ns = MonotonicNs();
  const auto trie = std::make_shared<const TokenTrie>(tokens, std::vector<TokenId>{});
  fmt::print("{{\"bench\":\"trie\",\"tokens\":{},\"nodes\":{},\"bytes\":{},\"us\":{:.0f}}}\n",
             trie->num_tokens(), trie->num_nodes(), trie->bytes(), UsSince(start_ns));
  TellCompile("1 KB", 10);
  TellCompile("10 KB", 100);
  TellTools(*tokenizer_json);
  const auto gbnf = CompileGrammarText(
      FormatLanguage::kGbnf,
      "root ::= sentence+\nsentence ::= word (\" \" word)* [.!?] \" \"?\nword ::= [a-zA-Z]+");
  KV_CHECK(gbnf.has_value());
  std::string words;
  for (int i = 0; i < 40; ++i) words += "The quick brown fox jumps over the lazy dog. ";
  const std::vector<Answer> answers = {
      {"schema", CompileSchema(ToolSchema(10)),
       R"({"property_0": "What is the weather like in the north of Norway?", "property_1": 12,)"
       R"( "property_2": ["Oslo", "Bergen and its hills", "Troms\u00f8"], "property_3": "kelvin",)"
       R"( "property_4": {"a": 12.75, "b": true}, "property_5": "another text, \"quoted\", long"})"},
      {"any JSON", CompileSchema("{}"),
       R"({"a": [1, 2.5, "text with words", {"b": null, "c": [true, false]}], "d": "e"})"},
      {"bounded text", CompileSchema(R"({"type":"string","maxLength":400})"),
       "\"" + words.substr(0, 390) + "\""},
      {"words", *gbnf, words}};
  for (const Answer& answer : answers) TellMasks(tokens, trie, answer);
  for (const uint32_t num_ranges : {1, 12, 100}) TellHostile(trie, 480, num_ranges);
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: grammar_bench TOKENIZER_JSON\n");
    return 2;
  }
  return kvasir::Main(argv[1]);
}
