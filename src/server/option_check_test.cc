#include "server/option_check.h"

#include <gtest/gtest.h>

#include <functional>

namespace kvasir {
namespace {

std::string Wrong(const std::function<void(ServerOptions&)>& change) {
  ServerOptions options;
  change(options);
  const Status status = CheckOptions(options);
  return status ? "" : status.error().text();
}

TEST(CheckOptions, LetsOrdinaryValuesPass) {
  EXPECT_EQ(Wrong([](ServerOptions&) {}), "");
  EXPECT_EQ(Wrong([](ServerOptions& options) {
              options.hosts = {"::1"};
              options.aliases = {"my model", "模型", "org/name"};
              options.api_keys = {"sk-1!~", std::string(kMaxKeyBytes, 'k')};
              options.admin_key = "root";
              options.cors_origins = {"https://a"};
              options.allowed_hosts = {"a"};
            }),
            "");
}

TEST(CheckOptions, NamesTheFieldAndNeverShowsAKey) {
  EXPECT_TRUE(Wrong([](ServerOptions& o) { o.hosts = {""}; }).starts_with("host: "));
  EXPECT_TRUE(Wrong([](ServerOptions& o) { o.cors_origins = {""}; }).starts_with("cors_origin: "));
  EXPECT_TRUE(
      Wrong([](ServerOptions& o) { o.allowed_hosts = {""}; }).starts_with("allowed_host: "));
  for (const char* alias : {"", "\xff", "a\nb", "\x1b[2J", "a\x7f", "\xed\xa0\x80"}) {
    EXPECT_TRUE(Wrong([&](ServerOptions& o) {
                  o.aliases = {"good", alias};
                }).starts_with("alias: "));
  }
  for (const char* key : {"", "se cret", " secret", "secret ", "secret\n", "\tsecret",
                          "secr\xc3\xa9t", "secret\x7f", "\x01secret"}) {
    const std::string api = Wrong([&](ServerOptions& o) { o.api_keys = {"good", key}; });
    EXPECT_TRUE(api.starts_with("api_key: ")) << api;
    EXPECT_EQ(api.find("secr"), std::string::npos) << api;
    if (*key == '\0') continue;  // no admin key
    EXPECT_TRUE(Wrong([&](ServerOptions& o) { o.admin_key = key; }).starts_with("admin_key: "));
  }
  EXPECT_NE(Wrong([](ServerOptions& o) { o.api_keys = {std::string(kMaxKeyBytes + 1, 'k')}; }), "");
}

}  // namespace
}  // namespace kvasir
