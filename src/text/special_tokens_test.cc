// BOS and EOS of a tokenizer, from the files that may state them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Makes a file of letters and two tokens of three: "<e>" is special, "<t>" is not.
json File() {
  json file;
  file["model"] = {
      {"type", "BPE"},
      {"vocab", {{"<", 0}, {"e", 1}, {">", 2}, {"t", 3}, {"<e>", 4}, {"a", 5}, {"<t>", 8}}},
      {"merges", json::array()}};
  file["added_tokens"] = {
      {{"id", 4}, {"content", "<e>"}, {"special", true}, {"normalized", false}},
      {{"id", 8}, {"content", "<t>"}, {"special", false}, {"normalized", false}}};
  file["decoder"] = {{"type", "Fuse"}};
  return file;
}

// What tokenizer_config.json does not mention comes from elsewhere.
TEST(SpecialTokens, SpecialTokensOfOtherFilesFillWhatTheConfigDoesNotMention) {
  const auto make = [](const char* config, const char* others) {
    auto tokenizer = Tokenizer::Parse(File().dump(), config, others);
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return std::move(*tokenizer);
  };
  const char* others =
      R"({"bos_token": {"content": "<e>"}, "eos_token": "<t>", "bos_token_id": 8})";
  const auto filled = make("", others);
  EXPECT_EQ(filled->bos_text(), "<e>");
  EXPECT_EQ(filled->eos_text(), "<t>");
  EXPECT_EQ(filled->bos(), TokenId{4});
  EXPECT_EQ(filled->eos(), TokenId{8});
  const auto config = make(R"({"bos_token": "<t>", "eos_token": null})", others);
  EXPECT_EQ(config->bos_text(), "<t>");
  EXPECT_EQ(config->eos_text(), "");
  EXPECT_FALSE(config->eos());
  const auto ids = make("{}", R"({"bos_token_id": 8, "eos_token_id": 77, "add_bos_token": true})");
  EXPECT_EQ(ids->bos_text(), "<t>");
  EXPECT_FALSE(ids->eos());
  EXPECT_EQ(*ids->Encode("a"), (std::vector<TokenId>{8, 5}));
  const auto off =
      make(R"({"add_bos_token": false})", R"({"bos_token_id": 8, "add_bos_token": true})");
  EXPECT_EQ(*off->Encode("a"), std::vector<TokenId>{5});
}

// What a GGUF file says counts beside a tokenizer.json that adds tokens too.
TEST(SpecialTokens, AnotherFileThatSaysSoDecidesOverThePostProcessor) {
  json file = File();
  file["post_processor"] = {{"type", "BertProcessing"},
                            {"cls", json::array({"<t>", 8})},
                            {"sep", json::array({"<e>", 4})}};
  const auto ids = [&](const char* others) {
    return (*Tokenizer::Parse(file.dump(), "", others))->Encode("a").value();
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(ids(R"({"bos_token_id": 8, "eos_token_id": 4})"), (Ids{8, 5, 4}));
  EXPECT_EQ(ids(R"({"bos_token_id": 8, "add_bos_token": true})"), (Ids{8, 5, 4}));
  EXPECT_EQ(ids(R"({"bos_token_id": 8, "add_bos_token": false})"), (Ids{5, 4}));
  EXPECT_EQ(ids(R"({"eos_token_id": 4, "add_eos_token": false})"), (Ids{8, 5}));
}

// A token that only its id makes a special one is never read in what users wrote.
TEST(SpecialTokens, ATokenThatIsBosByItsIdIsProtected) {
  const auto tokenizer = Tokenizer::Parse(File().dump(), "", R"({"bos_token_id": 8})");
  ASSERT_TRUE(tokenizer);
  EncodeOptions options;
  options.parse_special = false;
  EXPECT_EQ((*tokenizer)->Encode("<t>", options)->size(), 3u);
  EXPECT_EQ(*(*tokenizer)->Encode("<t>"), std::vector<TokenId>{8});
}

TEST(SpecialTokens, TheDigestKnowsOtherFilesWhereTheyDecideAndNowhereElse) {
  const char* config = R"({"bos_token": "<e>", "eos_token": "<t>", "add_bos_token": false,
                           "add_eos_token": false})";
  const char* others = R"({"bos_token": "<t>", "eos_token": "<e>", "add_bos_token": true})";
  const std::string file = File().dump();
  EXPECT_EQ((*Tokenizer::Parse(file, config))->digest(),
            (*Tokenizer::Parse(file, config, others))->digest());
  EXPECT_NE((*Tokenizer::Parse(file, "{}"))->digest(),
            (*Tokenizer::Parse(file, "{}", others))->digest());
}

TEST(SpecialTokens, ABlankTokenThatSwallowsSpacesIsFoundOnce) {
  json file = File();
  for (const auto& [content, id] : {std::pair(" ", 20), {"<r>", 21}}) {
    file["added_tokens"].push_back({{"id", id},
                                    {"content", content},
                                    {"special", false},
                                    {"normalized", false},
                                    {"lstrip", content[0] == ' '},
                                    {"rstrip", true}});
    file["model"]["vocab"][content] = id;
  }
  const auto tokenizer = Tokenizer::Parse(file.dump(), "{}");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(*(*tokenizer)->Encode("a   a"), (Ids{5, 20, 5}));
  EXPECT_EQ(*(*tokenizer)->Encode("a a  "), (Ids{5, 20, 5, 20}));
  EXPECT_EQ(*(*tokenizer)->Encode("   "), Ids{20});
  EXPECT_EQ(*(*tokenizer)->Encode("a<r>   a"), (Ids{5, 21, 5}));
}

}  // namespace
}  // namespace kvasir
