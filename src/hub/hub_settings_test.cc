#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

// The environment's variables of a hub, cleared; what they were comes back at the end.
class HubSettingsTest : public testing::Test {
 protected:
  HubSettingsTest() {
    for (const char* name :
         {"HOME", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE",
          "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
          "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SSL_CERT_FILE",
          "CURL_CA_BUNDLE", "SSL_CERT_DIR"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
  }
  ~HubSettingsTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  void Set(const std::string& name, const std::string& value) {
    set_.push_back(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::map<std::string, std::string> before_;
  std::vector<std::string> set_;
};

TEST_F(HubSettingsTest, TheCacheIsThatOfHuggingFace) {
  EXPECT_EQ(HubCacheFolder().error().code, Code::kInvalidArgument);
  Set("HOME", "/h");
  EXPECT_EQ(*HubCacheFolder(), "/h/.cache/huggingface/hub");
  Set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(*HubCacheFolder(), "/x/huggingface/hub");
  Set("CACHE_DIRECTORY", "/var/cache/kvasir:/more");
  EXPECT_EQ(*HubCacheFolder(), "/var/cache/kvasir/huggingface/hub");
  Set("HF_HOME", "~/hf");
  EXPECT_EQ(*HubCacheFolder(), "/h/hf/hub");
  Set("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(*HubCacheFolder(), "/old");
  Set("HF_HUB_CACHE", "/new");
  EXPECT_EQ(*HubCacheFolder(), "/new");
}

TEST_F(HubSettingsTest, TheTokenComesFromTheEnvironmentElseFromItsFile) {
  const fs::path home = fs::path(testing::TempDir()) / "hub_settings_home";
  fs::create_directories(home);
  Set("HF_HOME", home.string());
  EXPECT_FALSE(ReadHubSettings()->token);
  std::ofstream(home / "token") << " hf_file\n";
  EXPECT_EQ(ReadHubSettings()->token, "hf_file");
  Set("HF_TOKEN", "hf_given\n");
  EXPECT_EQ(ReadHubSettings()->token, "hf_given");
  Set("HF_TOKEN", "hf\r\nX-Other: 1");
  EXPECT_EQ(ReadHubSettings().error().code, Code::kInvalidArgument);
  fs::remove_all(home);
}

TEST_F(HubSettingsTest, ATokenIsNotSentInPlainTextToOtherMachines) {
  Set("HF_HUB_CACHE", "/c");
  Set("HF_HOME", "/c");
  Set("HF_TOKEN", "hf_x");
  for (const char* safe :
       {"https://hub.example/", "http://127.0.0.1:8", "http://localhost:8/x", "http://[::1]:8"}) {
    Set("HF_ENDPOINT", safe);
    EXPECT_EQ(ReadHubSettings()->token, "hf_x") << safe;
  }
  for (const char* plain : {"http://hub.example", "http://localhost.example", "http://127.evil.org",
                            "http://10.0.0.1"}) {
    Set("HF_ENDPOINT", plain);
    const auto settings = ReadHubSettings();
    EXPECT_FALSE(settings->token) << plain;
    EXPECT_NE(settings->warning.find(plain), std::string::npos);
  }
  for (const char* bad : {"ftp://x", "hub.example", "https://u:p@hub.example", "https://a b"}) {
    Set("HF_ENDPOINT", bad);
    EXPECT_EQ(ReadHubSettings().error().code, Code::kInvalidArgument) << bad;
  }
}

TEST_F(HubSettingsTest, OfflineIsWrittenInFourWays) {
  Set("HF_HOME", "/c");
  EXPECT_FALSE(ReadHubSettings()->is_offline);
  for (const char* yes : {"1", "on", "Yes", "TRUE"}) {
    Set("HF_HUB_OFFLINE", yes);
    EXPECT_TRUE(ReadHubSettings()->is_offline) << yes;
  }
  Set("HF_HUB_OFFLINE", "0");
  EXPECT_FALSE(ReadHubSettings()->is_offline);
}

}  // namespace
}  // namespace kvasir::hub
