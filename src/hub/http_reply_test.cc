#include "hub/http_reply.h"

#include <gtest/gtest.h>

namespace kvasir::hub {
namespace {

HttpReply ReplyOf(std::initializer_list<const char*> lines) {
  HttpReply reply;
  for (const char* line : lines) TakeHeaderLine(line, reply);
  return reply;
}

TEST(HttpReply, TheHubsNameOfAFileSurvivesARedirect) {
  const HttpReply reply =
      ReplyOf({"HTTP/2 302 \r\n", "x-linked-etag: \"abc\"\r\n", "Location: https://cdn\r\n", "\r\n",
               "HTTP/1.1 206 Partial Content\r\n", "ETag: \"other\"\r\n",
               "Content-Range: bytes 100-199/200\r\n", "\r\n"});
  EXPECT_EQ(reply.status, 206);
  EXPECT_EQ(reply.etag, "abc");
  EXPECT_EQ(reply.range_begin, 100u);
}

TEST(HttpReply, AnotherHostsEtagIsNotTheHubs) {
  EXPECT_EQ(ReplyOf({"HTTP/1.1 307 Moved", "HTTP/1.1 200 OK", "ETag: \"other\""}).etag, "");
  EXPECT_EQ(ReplyOf({"HTTP/1.1 200 OK", "ETAG:  W/\"abc\" \r\n"}).etag, "abc");
  EXPECT_EQ(ReplyOf({"HTTP/1.1 200 OK", "ETag: abc", "X-Linked-Etag: \"d\""}).etag, "d");
}

TEST(HttpReply, EachResponseHasItsOwnFields) {
  const HttpReply reply =
      ReplyOf({"HTTP/1.1 429 Too Many", "Retry-After: 7", "X-Error-Code: GatedRepo",
               "Content-Range: bytes 5-6/7", "HTTP/1.1 200 OK"});
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.retry_after_s || reply.range_begin);
  EXPECT_EQ(reply.error_code, "");
  EXPECT_EQ(ReplyOf({"HTTP/1.1 503 x", "retry-after: 7"}).retry_after_s, 7u);
}

TEST(HttpReply, OddLinesAreNoFields) {
  const HttpReply reply =
      ReplyOf({"HTTP/", "no colon", "Retry-After: Fri, 31 Dec 1999", "Content-Range: bytes */7",
               "Content-Range: lines 1-2/3", "ETag: \"", ":", "Retry-After: 99999999999999"});
  EXPECT_EQ(reply.status, 0);
  EXPECT_EQ(reply.etag, "\"");
  EXPECT_FALSE(reply.retry_after_s || reply.range_begin);
}

}  // namespace
}  // namespace kvasir::hub
