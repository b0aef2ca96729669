#include "base/user_folders.h"

#include <gtest/gtest.h>

#include "base/environment_for_test.h"

namespace kvasir {
namespace {

TEST(UserFolders, AreTheOptionElseXdgElseBelowHomeElseNone) {
  const Environment none{{"CACHE_DIRECTORY", nullptr},
                         {"STATE_DIRECTORY", nullptr},
                         {"XDG_CACHE_HOME", nullptr},
                         {"XDG_STATE_HOME", nullptr},
                         {"HOME", nullptr}};
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
  const Environment service{{"CACHE_DIRECTORY", "/var/cache/kvasir"},
                            {"STATE_DIRECTORY", "/var/lib/kvasir:/var/lib/more"}};
  EXPECT_EQ(CacheDir(std::nullopt), "/var/cache/kvasir");
  EXPECT_EQ(StateDir(std::nullopt), "/var/lib/kvasir");
  EXPECT_EQ(StateDir("/given"), "/given");
}

TEST(UserFolders, OfAServiceAreAbsolute) {
  const Environment wrong{{"STATE_DIRECTORY", "kvasir"}, {"XDG_STATE_HOME", "/s"}};
  EXPECT_EQ(StateDir(std::nullopt), "/s/kvasir");
  const Environment empty{{"STATE_DIRECTORY", ""}};
  EXPECT_EQ(StateDir(std::nullopt), "/s/kvasir");
}

}  // namespace
}  // namespace kvasir
