#include "access/browser_rules.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Authority, IsAHostAndMaybeAPort) {
  EXPECT_EQ(ParseAuthority("LocalHost:8080"), (Authority{"localhost", 8080}));
  EXPECT_EQ(ParseAuthority("a-b.example."), (Authority{"a-b.example.", std::nullopt}));
  EXPECT_EQ(ParseAuthority("x:"), (Authority{"x", std::nullopt}));
  EXPECT_EQ(ParseAuthority("[::1]:80"), (Authority{"[::1]", 80}));
  EXPECT_EQ(ParseAuthority("[::FFFF:127.0.0.1]"), (Authority{"[::ffff:127.0.0.1]", std::nullopt}));
  for (const char* text :
       {"",     ":80", "a:b",   "a:80:80", "a:65536",     "a:-1",           "a b", "a/b",  "u@a",
        "[::1", "[]",  "[x]",   "[::1]x",  "[127.0.0.1]", "[fe80::1%eth0]", "::1", "a%41", "é",
        "*",    "a,b", "a:8 0", "a\\b"}) {
    EXPECT_FALSE(ParseAuthority(text)) << text;
  }
}

TEST(Host, OfLoopbackNamesThisMachineOnly) {
  for (const char* host : {"localhost", "a.localhost", "a.b.localhost", "localhost.", "127.0.0.1",
                           "127.255.0.9", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host :
       {"localhost.example", "xlocalhost", ".localhost", "localhost..", "", "127.1",
        "127.0.0.1.example", "127.0.0.256", "0.0.0.0", "[::]", "[::2]", "10.0.0.1", "0x7f.0.0.1",
        "2130706433", "[::ffff:10.0.0.1]", "localhost6"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(Origin, HasASchemeAHostAndMaybeAPort) {
  EXPECT_EQ(ParseOrigin("HTTPS://App.Example:443"), ParseOrigin("https://app.example"));
  EXPECT_EQ(ParseOrigin("http://a:80"), ParseOrigin("http://a"));
  EXPECT_NE(ParseOrigin("http://a:443"), ParseOrigin("http://a"));
  EXPECT_NE(ParseOrigin("https://a"), ParseOrigin("http://a"));
  EXPECT_TRUE(ParseOrigin("chrome-extension://abcdefgh"));
  EXPECT_TRUE(ParseOrigin("http://[::1]:3000"));
  for (const char* text : {"",
                           "null",
                           "a.example",
                           "http://",
                           "http:a",
                           "//a",
                           "http://a/",
                           "http://a/b",
                           "http://a?b",
                           "http://a#b",
                           "http://u@a",
                           " http://a",
                           "http://a ",
                           "http://a http://b",
                           "http://a,http://b",
                           "http://a:",
                           "http://a:x",
                           "http://*.example",
                           "://a",
                           "1http://a",
                           "h ttp://a",
                           "localhost:3000"}) {
    EXPECT_FALSE(ParseOrigin(text)) << text;
  }
}

std::string CodeOf(const std::optional<Error>& error) {
  return error ? RefusalOf(*error).code : "passes";
}

TEST(BrowserRules, AServerOnLoopbackAnswersToItsNamesOnly) {
  BrowserRules rules({}, {});
  EXPECT_EQ(CodeOf(rules.Check("evil.example", "")), "passes");
  rules.ListensOnLoopback();
  for (const char* host :
       {"localhost", "LOCALHOST:8080", "x.localhost:1", "127.0.0.1:8080", "[::1]"}) {
    EXPECT_EQ(CodeOf(rules.Check(host, "")), "passes") << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "", "x", "localhost@evil",
                           "127.0.0.1.evil", "192.168.1.5", "0.0.0.0:8080", "localhost:x"}) {
    EXPECT_EQ(CodeOf(rules.Check(host, "")), "misdirected") << host;
    EXPECT_EQ(HttpStatus(*rules.Check(host, "")), 421);
  }
  EXPECT_EQ(CodeOf(rules.Check(std::nullopt, "")), "passes");
}

TEST(BrowserRules, AllowedHostsAddToThoseOfLoopbackWhereverItListens) {
  const BrowserRules rules({}, {"Chat.Example", "10.0.0.7", "::2"});
  for (const char* host :
       {"chat.example", "CHAT.example:99", "10.0.0.7:8080", "[::2]:1", "localhost"}) {
    EXPECT_EQ(CodeOf(rules.Check(host, "")), "passes") << host;
  }
  for (const char* host : {"a.chat.example", "chat.example.org", "10.0.0.8", "[::3]"}) {
    EXPECT_EQ(CodeOf(rules.Check(host, "")), "misdirected") << host;
  }
}

TEST(BrowserRules, APageThatIsNotListedGetsNothing) {
  const BrowserRules rules({"https://app.example", "http://b:81"}, {});
  const auto check = [&](const char* origin) { return CodeOf(rules.Check("srv:8080", origin)); };
  for (const char* origin : {"", "https://app.example", "https://APP.example:443", "http://b:81",
                             "http://srv:8080", "https://srv:8080"}) {
    EXPECT_EQ(check(origin), "passes") << origin;
  }
  for (const char* origin :
       {"null", "http://app.example", "https://app.example:8443", "http://b", "http://srv",
        "https://evil.example", "https://app.example.evil", "x", "http://srv:8081",
        "http://localhost:8080", "https://app.example https://evil.example"}) {
    EXPECT_EQ(check(origin), "origin_not_allowed") << origin;
    EXPECT_EQ(rules.AllowedOrigin(origin), "") << origin;
  }
  EXPECT_EQ(rules.AllowedOrigin("https://app.example"), "https://app.example");
  EXPECT_EQ(rules.AllowedOrigin("http://srv:8080"), "");  // the same origin needs no header
}

TEST(BrowserRules, AProxyWithTlsHasItsPortLeftOut) {
  const BrowserRules rules({"none"}, {});
  EXPECT_EQ(CodeOf(rules.Check("chat.example", "https://chat.example")), "passes");
  EXPECT_EQ(CodeOf(rules.Check("chat.example", "http://chat.example")), "passes");
  EXPECT_EQ(CodeOf(rules.Check("chat.example:443", "https://chat.example")), "passes");
  EXPECT_EQ(CodeOf(rules.Check("chat.example:8080", "https://chat.example")), "origin_not_allowed");
  EXPECT_EQ(CodeOf(rules.Check("chat.example", "ftp://chat.example")), "origin_not_allowed");
  EXPECT_EQ(CodeOf(rules.Check(std::nullopt, "https://chat.example")), "origin_not_allowed");
  EXPECT_EQ(CodeOf(rules.Check("chat.example", "https://evil.example")), "origin_not_allowed");
}

TEST(BrowserRules, KeywordsStandForManyOrigins) {
  const BrowserRules local({"localhost", "https://app.example"}, {});
  for (const char* origin : {"http://localhost:3000", "https://localhost", "http://127.0.0.1:5173",
                             "http://[::1]:80", "http://a.localhost", "https://app.example"}) {
    EXPECT_EQ(CodeOf(local.Check("srv", origin)), "passes") << origin;
    EXPECT_EQ(local.AllowedOrigin(origin), origin);
  }
  for (const char* origin :
       {"https://evil.example", "http://localhost.evil", "file://localhost", "null"}) {
    EXPECT_EQ(CodeOf(local.Check("srv", origin)), "origin_not_allowed") << origin;
  }
  for (const auto& given : {std::vector<std::string>{}, std::vector<std::string>{"*"}}) {
    const BrowserRules any(given, {});
    EXPECT_TRUE(any.any_origin());
    EXPECT_EQ(any.AllowedOrigin("null"), "*");
    EXPECT_EQ(CodeOf(any.Check("srv", "null")), "passes");
  }
}

TEST(BrowserRules, ValuesThatCannotBeMeantAreRefused) {
  using List = std::vector<std::string>;
  for (const List& good : {List{}, List{"*"}, List{"none"}, List{"localhost"},
                           List{"localhost", "https://a"}, List{"http://a", "http://a:1"}}) {
    EXPECT_TRUE(CheckCorsOrigins(good));
  }
  for (const List& bad :
       {List{""}, List{"*", "http://a"}, List{"none", "localhost"}, List{"http://a", "none"},
        List{"http://a/"}, List{"a.example"}, List{"null"}, List{"http://a,http://b"},
        List{" http://a"}, List{"http://*"}, List{"None"}, List{"none", "none"}}) {
    const Status status = CheckCorsOrigins(bad);
    ASSERT_FALSE(status) << bad[0];
    EXPECT_EQ(status.error().field, "cors_origin");
  }
  EXPECT_TRUE(CheckAllowedHosts({"a.example", "10.0.0.1", "[::2]", "::2"}));
  for (const char* bad :
       {"", "a:80", "a:", "http://a", "a/", "*", "*.a", "a b", "a,b", "[::2]:80", "::x"}) {
    EXPECT_FALSE(CheckAllowedHosts({bad})) << bad;
  }
}

}  // namespace
}  // namespace kvasir
