#include "http/request_reader.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <utility>

#include "http/http_text.h"
#include "http/plain_stream.h"
#include "http/request_memory.h"
#include "http/socket_pair_for_test.h"

namespace kvasir {
namespace {

using ErrorCode = RequestReader::ErrorCode;

class RequestReaderTest : public testing::Test {
 protected:
  // Runs the operation that `start` begins to its end.
  template <typename Start>
  ErrorCode Run(Start start) {
    std::optional<ErrorCode> result;
    start([&](ErrorCode ec, size_t) { result = ec; });
    io_.restart();
    while (!result && io_.run_one() > 0) {
    }
    EXPECT_TRUE(result.has_value());
    return result.value_or(ErrorCode());
  }
  ErrorCode ReadHead() {
    return Run([&](auto done) { reader_.ReadHead(std::move(done)); });
  }
  ErrorCode ReadBody(uint64_t max_bytes = 1 << 20) {
    return Run([&](auto done) { reader_.ReadBody(max_bytes, std::move(done)); });
  }
  ErrorCode ReadSome() {
    return Run([&](auto done) { reader_.ReadSome(std::move(done)); });
  }

  // Sends one request and returns its head.
  RequestHead HeadOf(const std::string& text) {
    sockets_.Send(text);
    EXPECT_FALSE(ReadHead()) << text;
    return reader_.Head();
  }
  std::string RefusalOf(const std::string& text) {
    const std::optional<Error> refusal = HeadOf(text).refusal;
    return refusal ? refusal->message : "";
  }

  void ExpectTooLarge(const std::string& chunked_body) {
    HeadOf("GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    sockets_.Send(chunked_body);
    const std::optional<Error> error = ReadError(ReadBody(), 1 << 20);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(HttpStatus(*error), 431);
  }

  boost::asio::io_context io_;
  SocketPair sockets_{io_.get_executor(), io_.get_executor()};
  PlainStream stream_{sockets_.server};
  RequestReader reader_{stream_};
};

TEST_F(RequestReaderTest, TellsWhatAHeadSays) {
  RequestHead head = HeadOf(
      "POST /v1/completions?a=b HTTP/1.1\r\nhost: x\r\nAuthorization: Bearer k\r\n"
      "X-Api-Key: key\r\n"
      "Origin: http://page\r\nAccess-Control-Request-Headers: x-a\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(head.request.method, "POST");
  EXPECT_EQ(head.request.target, "/v1/completions?a=b");
  EXPECT_EQ(head.request.authorization, "Bearer k");
  EXPECT_EQ(head.request.api_key, "key");
  EXPECT_EQ(head.request.origin, "http://page");
  EXPECT_EQ(head.request.requested_headers, "x-a");
  EXPECT_EQ(head.body_bytes, 3u);
  EXPECT_FALSE(head.refusal) << head.refusal->message;
  EXPECT_EQ(head.version, HttpVersion::k11);
  EXPECT_TRUE(head.keep_alive);
  EXPECT_FALSE(head.is_head || head.whole);
  sockets_.Send("abc");
  EXPECT_FALSE(ReadBody());
  EXPECT_EQ(reader_.TakeBody(), "abc");

  head = HeadOf("HEAD http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(head.request.method, "HEAD");
  EXPECT_EQ(head.request.target, "/health");
  EXPECT_EQ(head.request.authorization + head.request.origin,
            "");  // not from the request before
  EXPECT_EQ(head.body_bytes, std::nullopt);
  EXPECT_TRUE(head.is_head && head.whole && head.version == HttpVersion::k11);
  EXPECT_FALSE(head.keep_alive);

  head = HeadOf("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(head.version, HttpVersion::k10);
  EXPECT_FALSE(head.keep_alive || head.is_head);
  head = HeadOf("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(head.keep_alive);
}

TEST_F(RequestReaderTest, TheHostIsThatOfTheTargetOrElseOfTheHeader) {
  const auto host = [this](const std::string& target, const std::string& headers) {
    return HeadOf("GET " + target + " HTTP/1.0\r\n" + headers + "\r\n").request.host.value_or("-");
  };
  EXPECT_EQ(host("/", "Host: a:1\r\n"), "a:1");
  EXPECT_EQ(host("/", "Host:\r\n"), "");
  EXPECT_EQ(host("/", ""), "-");
  EXPECT_EQ(host("http://b:2/health", "Host: a\r\n"), "b:2");
  EXPECT_EQ(host("HTTP://b?x", ""), "b");
  EXPECT_EQ(host("http://b", "Host: a\r\n"), "b");
  EXPECT_EQ(host("http://user@b/", ""), "user@b");
  EXPECT_EQ(host("http:///health", "Host: a\r\n"), "");
  EXPECT_EQ(host("/?u=http://b/", "Host: a\r\n"), "a");
  EXPECT_EQ(host("*", "Host: a\r\n"), "a");
}

TEST_F(RequestReaderTest, TwoOriginsAreJoinedSoThatTheyAreNone) {
  EXPECT_EQ(HeadOf("GET / HTTP/1.0\r\nOrigin: http://a\r\norigin: http://b\r\n\r\n").request.origin,
            "http://a, http://b");
  EXPECT_EQ(HeadOf("GET / HTTP/1.0\r\n\r\n").request.origin, "");
}

TEST_F(RequestReaderTest, WhatComesEarlyIsTheNextRequest) {
  sockets_.Send(
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\none.\r\n"
      "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\ntwo\r\n1\r\n.\r\n0\r\n\r\n"
      "GET /c HTTP/1.1\r\nHost: x\r\n\r\n");
  for (const auto& [target, body] : {std::pair{"/a", "one."}, std::pair{"/b", "two."}}) {
    ASSERT_FALSE(ReadHead());
    EXPECT_EQ(reader_.Head().request.target, target);
    EXPECT_FALSE(reader_.Head().whole);
    ASSERT_FALSE(ReadBody());
    EXPECT_EQ(reader_.TakeBody(), body);
    EXPECT_TRUE(reader_.has_bytes());
    EXPECT_TRUE(reader_.AtRequest());
  }
  ASSERT_FALSE(ReadHead());
  EXPECT_EQ(reader_.Head().request.target, "/c");
  EXPECT_TRUE(reader_.Head().whole);
  EXPECT_FALSE(reader_.has_bytes());
  EXPECT_FALSE(reader_.AtRequest());
}

TEST_F(RequestReaderTest, EmptyLinesAreNoRequest) {
  for (const char* part : {"\r", "\n", "\r\n\r\n\r"}) {
    sockets_.Send(part);
    ASSERT_FALSE(ReadSome());
    EXPECT_FALSE(reader_.AtRequest());
  }
  sockets_.Send("\nG");
  ASSERT_FALSE(ReadSome());
  EXPECT_TRUE(reader_.AtRequest());
  sockets_.Send("ET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_FALSE(ReadHead());
  EXPECT_EQ(reader_.Head().request.method, "GET");
  EXPECT_FALSE(reader_.has_bytes());
}

TEST_F(RequestReaderTest, OneReadIsPendingAtATime) {
  int first = 0, second = 0;
  reader_.ReadSome([&](ErrorCode ec, size_t bytes) {
    EXPECT_FALSE(ec);
    EXPECT_EQ(bytes, 2u);
    ++first;
  });
  reader_.ReadSome([&](ErrorCode, size_t) { ++second; });
  sockets_.Send("ab");
  io_.run();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  sockets_.Send("c");
  EXPECT_FALSE(ReadSome());  // the first has ended
  EXPECT_TRUE(reader_.has_bytes());
  reader_.DropBytes();
  EXPECT_FALSE(reader_.has_bytes());
}

TEST_F(RequestReaderTest, AClientThatWaitsIsToldToGoOnOnce) {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  const std::string rest = "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n";
  HeadOf("POST / HTTP/1.1\r\nHost: x\r\n" + rest);
  EXPECT_FALSE(sockets_.Readable(0));  // no 100 Continue: the body may be refused
  sockets_.Send("x");
  ASSERT_FALSE(ReadBody());
  EXPECT_EQ(reader_.TakeBody(), "x");
  HeadOf("POST / HTTP/1.0\r\n" + rest);  // HTTP/1.0 has no 100 Continue
  sockets_.Send("y");
  ASSERT_FALSE(ReadBody());
  EXPECT_EQ(reader_.TakeBody(), "y");
  sockets_.server.close();
  EXPECT_EQ(sockets_.ReceiveAll(), kContinue);
}

TEST_F(RequestReaderTest, RefusesFramingsThatAProxyCouldReadOtherwise) {
  const auto refusal = [&](const char* version, const std::string& headers) {
    return RefusalOf(std::string("POST / HTTP/") + version + "\r\nHost: x\r\n" + headers + "\r\n");
  };
  EXPECT_NE(refusal("1.1", "Transfer-Encoding: gzip\r\n"), "");
  EXPECT_NE(refusal("1.0", "Transfer-Encoding: gzip\r\n"), "");
  EXPECT_EQ(refusal("1.1", ""), "");
}

TEST_F(RequestReaderTest, RefusesBodiesThatAreCompressed) {
  const auto refusal = [&](const std::string& headers) {
    return RefusalOf("POST / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  };
  for (const char* encoding : {"gzip", "br", "identity, gzip", "gzip\r\nContent-Encoding: x"}) {
    EXPECT_NE(refusal(std::string("Content-Encoding: ") + encoding + "\r\n"), "") << encoding;
  }
  for (const char* encoding : {"", "identity", "Identity"}) {
    EXPECT_EQ(refusal(std::string("Content-Encoding: ") + encoding + "\r\n"), "") << encoding;
  }
}

TEST_F(RequestReaderTest, RefusesRequestsThatNameNoOneHost) {
  const auto refusal = [&](const char* version, const std::string& headers) {
    return RefusalOf(std::string("GET / HTTP/") + version + "\r\n" + headers + "\r\n");
  };
  const std::string none = "an HTTP/1.1 request needs a Host header";
  const std::string many = "the request has more than one Host header";
  EXPECT_EQ(refusal("1.1", ""), none);
  EXPECT_EQ(refusal("1.1", "X-Host: x\r\n"), none);
  EXPECT_EQ(refusal("1.0", ""), "");
  for (const char* version : {"1.0", "1.1"}) {
    EXPECT_EQ(refusal(version, "Host: x\r\nhost: x\r\n"), many);
    EXPECT_EQ(refusal(version, "Host: x\r\nA: b\r\nHost:\r\n"), many);
    for (const char* host : {"", "x", "a.example:8080", "[::1]:80", "127.0.0.1", "a_b-c"}) {
      EXPECT_EQ(refusal(version, std::string("Host: ") + host + "\r\n"), "") << host;
    }
    for (const char* host : {"a b", "http://a", "a/b", "user@a", "a?b"}) {
      EXPECT_NE(refusal(version, std::string("Host: ") + host + "\r\n"), "") << host;
    }
  }
}

TEST_F(RequestReaderTest, AHeadHasABound) {
  sockets_.Send("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(kHeadBytes, 'a') + "\r\n\r\n");
  const auto error = ReadError(ReadHead(), 0);
  ASSERT_TRUE(error);
  EXPECT_EQ(HttpStatus(*error), 431);
}

TEST_F(RequestReaderTest, ABodyHasABound) {
  HeadOf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  sockets_.Send("4\r\nabcd\r\n4\r\nabcd\r\n0\r\n\r\n");
  const auto error = ReadError(ReadBody(7), 7);
  ASSERT_TRUE(error);
  EXPECT_EQ(HttpStatus(*error), 413);
  EXPECT_EQ(error->text(), "body: has more than 7 bytes");
}

TEST_F(RequestReaderTest, AClientThatIsGoneGetsNoAnswer) {
  HeadOf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc");
  sockets_.EndSending();
  const ErrorCode ec = ReadBody();
  EXPECT_TRUE(ec);
  EXPECT_FALSE(ReadError(ec, 5));
  EXPECT_TRUE(ReadSome());
}

// Trailers do not count as bytes of the body.
TEST_F(RequestReaderTest, TrailersAreBounded) {
  ExpectTooLarge("0\r\nX: " + std::string(100'000, 'y') + "\r\n\r\n");
}

TEST_F(RequestReaderTest, ChunkExtensionsAreBounded) {
  ExpectTooLarge("1;x=" + std::string(100'000, 'y') + "\r\nz\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace kvasir
