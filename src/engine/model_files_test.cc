#include "engine/model_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

namespace fs = std::filesystem;

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
}

TEST(ModelFiles, TheBundledModelIsTheInstalledOneElseTheOneOfTheBuild) {
  std::string pattern = fs::temp_directory_path() / "kvasir-model-files-XXXXXX";
  const fs::path root = mkdtemp(pattern.data());
  const auto put = [&](const std::string& folder) {
    fs::create_directories(root / folder / "kvasir-demo");
    std::ofstream(root / folder / "kvasir-demo/config.json") << "{}";
    return fs::canonical(root / folder / "kvasir-demo");
  };
  fs::create_directories(root / "usr/bin");
  fs::create_directories(root / "build/release");
  const auto missing = FindBundledModel(root / "usr/bin");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("usr/share/kvasir/models/kvasir-demo"), std::string::npos);
  const fs::path developed = put("models");
  EXPECT_EQ(*FindBundledModel(root / "build/release"), developed);
  const fs::path beside = put("build/release/models");
  EXPECT_EQ(*FindBundledModel(root / "build/release"), beside);
  const fs::path installed = put("usr/share/kvasir/models");
  put("usr/bin/models");
  EXPECT_EQ(*FindBundledModel(root / "usr/bin"), installed);
  fs::remove_all(root);
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
  EXPECT_NE(refused.error().message.find("belongs to another model"), std::string::npos);
  EXPECT_TRUE(model->tokenizer_json.empty());  // taken
  const auto ids_only = LoadText(TakeText(*model));
  ASSERT_TRUE(ids_only);
  EXPECT_FALSE(ids_only->tokenizer || ids_only->chat_template);
}

}  // namespace
}  // namespace kvasir
