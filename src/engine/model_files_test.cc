#include "engine/model_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

// Environment variables as given (nullptr: unset); afterwards as they were.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name);
      before_[name] = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
      Set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) Set(name.c_str(), value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void Set(const char* name, const char* value) {
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  std::map<std::string, std::optional<std::string>> before_;
};

TEST(ModelFiles, FoldersAreTheOptionElseXdgElseBelowHomeElseNone) {
  const Environment none{
      {"XDG_CACHE_HOME", nullptr}, {"XDG_STATE_HOME", nullptr}, {"HOME", nullptr}};
  EXPECT_EQ(CacheDir("/given"), "/given");
  EXPECT_EQ(CacheDir(std::nullopt), "");
  EXPECT_EQ(StateDir(std::nullopt), "");
  {
    const Environment home{{"HOME", "/home/me"}};
    EXPECT_EQ(CacheDir(std::nullopt), "/home/me/.cache/kvasir");
    EXPECT_EQ(StateDir(std::nullopt), "/home/me/.local/state/kvasir");
  }
  const Environment xdg{{"XDG_CACHE_HOME", "/c"}, {"XDG_STATE_HOME", "/s"}};
  EXPECT_EQ(CacheDir(std::nullopt), "/c/kvasir");
  EXPECT_EQ(StateDir(std::nullopt), "/s/kvasir");
}

TEST(ModelFiles, AModelIsTheOptionElseTheEnvironmentsElseTheBundledOne) {
  const Environment named{{"KVASIR_MODEL", "/nowhere/named"}};
  const auto missing = FindModel(std::nullopt);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("/nowhere/named"), std::string::npos);
  EXPECT_EQ(*FindModel("/tmp"), "/tmp");
  const Environment unnamed{{"KVASIR_MODEL", nullptr}};
  EXPECT_EQ(FindModel(std::nullopt)->filename(), "kvasir-demo");
}

TEST(ModelFiles, ATokenizerThatDoesNotFitTheModelIsRefused) {
  auto model = ImportModel(*FindModel(KVASIR_SOURCE_DIR "/models/kvasir-demo"));
  ASSERT_TRUE(model) << model.error().message;
  TextSource source = TakeText(*model);
  const auto text = LoadText(source);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_TRUE(text->tokenizer && text->chat_template);
  source.vocab_size = text->tokenizer->vocab_size() - 1;
  const auto refused = LoadText(source);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("another model's tokenizer"), std::string::npos);
  EXPECT_TRUE(model->tokenizer_json.empty());  // taken
  const auto ids_only = LoadText(TakeText(*model));
  ASSERT_TRUE(ids_only);
  EXPECT_FALSE(ids_only->tokenizer || ids_only->chat_template);
}

}  // namespace
}  // namespace kvasir
