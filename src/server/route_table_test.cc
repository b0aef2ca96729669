#include "server/route_table.h"

#include <gtest/gtest.h>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

TEST(RouteTable, PatternsTakeSegmentsAndRests) {
  EXPECT_TRUE(PathMatches("/a/{id}", "/a/b"));
  EXPECT_FALSE(PathMatches("/a/{id}", "/a/"));
  EXPECT_FALSE(PathMatches("/a/{id}", "/a/b/c"));
  EXPECT_TRUE(PathMatches("/a/{id}/c", "/a/b/c"));
  EXPECT_TRUE(PathMatches("/a/*", "/a/b/c"));
  EXPECT_FALSE(PathMatches("/a/*", "/a/"));
  EXPECT_FALSE(PathMatches("/a", "/a/b"));
}

TEST(RouteTable, TheFirstRouteOfPathAndMethodAnswers) {
  RouteTable table;
  table.Add({.path = "/a", .method = "GET", .handler = {}, .access = Access::kOpen});
  table.Add({.path = "/a", .method = "POST", .handler = {}});
  table.Add({.path = "/b/*", .method = "", .handler = {}});
  EXPECT_EQ(table.Find(RequestOf("POST", "/a/?x=1")), &table.all()[1]);
  EXPECT_EQ(table.Find(RequestOf("PUT", "/a")), nullptr);
  EXPECT_EQ(table.Find(RequestOf("PUT", "/b/c")), &table.all()[2]);
  EXPECT_EQ(table.FindPath("/a"), &table.all()[0]);
  EXPECT_EQ(table.FindPath("/c"), nullptr);
  table.Add({.path = "/c/{id}", .method = "GET", .handler = {}});
  table.Add({.path = "/c/d", .method = "POST", .handler = {}});
  EXPECT_EQ(table.Find(RequestOf("GET", "/c/d")), nullptr) << "the path is not an id";
  EXPECT_EQ(table.Find(RequestOf("POST", "/c/d")), &table.all()[4]);
  EXPECT_EQ(table.FindPath("/c/d"), &table.all()[4]);
  EXPECT_EQ(table.Find(RequestOf("GET", "/c/e")), &table.all()[3]);
}

TEST(RouteTable, AProtocolSaysHowUnknownPathsBelowItsPrefixAreRefused) {
  RouteTable table;
  EXPECT_EQ(table.FindUnknown("/api"), nullptr);
  table.AddUnknown({.prefix = "/api", .errors = &kPlainErrors, .hint = "; ask below /v1"});
  for (const char* path : {"/api", "/api/x", "/api/x/y"}) {
    ASSERT_NE(table.FindUnknown(path), nullptr) << path;
    EXPECT_EQ(table.FindUnknown(path)->errors, &kPlainErrors);
  }
  for (const char* path : {"/apis", "/v1/api", "/", ""}) {
    EXPECT_EQ(table.FindUnknown(path), nullptr) << path;
  }
}

TEST(RouteTable, OnlyBrowsersGetPages) {
  RouteTable table;
  table.Add({.path = "/", .method = "GET", .handler = {}});
  table.Add({.path = "/", .method = "GET", .handler = {}, .is_page = true});
  HttpRequest request = RequestOf("GET", "/");
  EXPECT_EQ(table.Find(request), &table.all()[0]);
  request.accepts_html = true;
  ASSERT_NE(table.Find(request), nullptr);
  EXPECT_TRUE(table.Find(request)->is_page);
  request.method = "POST";
  EXPECT_EQ(table.Find(request), nullptr);
  EXPECT_EQ(table.FindPath("/"), &table.all()[0]) << "a page is not in lists";
  EXPECT_EQ(table.all().size(), 1u);
}

TEST(Call, QueriesAndSegmentsAreDecoded) {
  EXPECT_EQ(PathOf("/a/b//?x#y"), "/a/b");
  EXPECT_EQ(PathOf("/"), "/");
  EXPECT_EQ(SegmentOf("/v1/sessions/x/y", 2), "x");
  EXPECT_EQ(SegmentOf("/v1", 1), "");
  EXPECT_EQ(QueryValue("/a?b=c%2Fd&b=e", "b"), "c/d");
  EXPECT_EQ(QueryValue("/a?b", "b"), "");
  EXPECT_EQ(QueryValue("/a", "b"), std::nullopt);
  EXPECT_EQ(PercentDecoded("%zz%4"), "%zz%4");
}

}  // namespace
}  // namespace kvasir
