#include "http/response_writer.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/read_until.hpp>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "http/plain_stream.h"
#include "http/socket_pair_for_test.h"

namespace kvasir {
namespace {

using SystemErrorCode = boost::system::error_code;

const std::string kHead = "HTTP/1.1 200 OK\r\n";

// Yields pieces of 10,000 letters each: a, b, ...
Parts Letters(int pieces) {
  for (int i = 0; i < pieces; ++i) {
    std::string text(10000, static_cast<char>('a' + i));
    co_yield text;
  }
}

std::string LettersText(int pieces) {
  std::string text;
  for (int i = 0; i < pieces; ++i) text.append(10000, static_cast<char>('a' + i));
  return text;
}

HttpResponse ResponseOf(Parts rest) {
  HttpResponse response;
  response.rest = std::move(rest);
  ResponseWriter::Gather(&response);
  return response;
}

// Joins the chunks of a body; the last chunk must be there.
std::string Joined(std::string_view chunks) {
  std::string body;
  for (;;) {
    const size_t line = chunks.find("\r\n");
    if (line == chunks.npos) return "(no chunk) " + body;
    const size_t size = std::stoul(std::string(chunks.substr(0, line)), nullptr, 16);
    if (size == 0) return chunks == "0\r\n\r\n" ? body : "(bytes after the last chunk) " + body;
    if (chunks.substr(line + 2 + size, 2) != "\r\n") return "(a chunk without an end) " + body;
    body += chunks.substr(line + 2, size);
    chunks.remove_prefix(line + size + 4);
  }
}

class ResponseWriterTest : public testing::Test {
 protected:
  void RunUntil(const bool& done) {
    io_.restart();
    while (!done && io_.run_one() > 0) {
    }
    EXPECT_TRUE(done);
  }
  SystemErrorCode Write() {
    SystemErrorCode result;
    bool done = false;
    writer_.Write([&](SystemErrorCode ec) {
      result = ec;
      done = true;
    });
    EXPECT_TRUE(writer_.writing());
    EXPECT_FALSE(done);  // not during the call
    RunUntil(done);
    EXPECT_FALSE(writer_.writing());
    return result;
  }
  // Writes everything and returns what the client received.
  std::string Sent() {
    static constexpr std::string_view kMark = "\x01the end\x01";
    std::string received;
    bool done = false;
    boost::asio::async_read_until(sockets_.client, boost::asio::dynamic_buffer(received), kMark,
                                  [&](SystemErrorCode, size_t) { done = true; });
    do {
      EXPECT_LE(writer_.held_bytes(), kMaxHeldBytes);
      EXPECT_FALSE(Write());
    } while (writer_.Advance());
    boost::asio::async_write(sockets_.server, boost::asio::buffer(kMark),
                             [](SystemErrorCode, size_t) {});
    RunUntil(done);
    EXPECT_TRUE(received.ends_with(kMark));
    return received.substr(0, received.find(kMark));
  }

  static constexpr uint64_t kMaxHeldBytes = 100000;  // of 200,000
  boost::asio::io_context io_;
  SocketPair sockets_{io_.get_executor(), io_.get_executor()};
  PlainStream stream_{sockets_.server};
  ResponseWriter writer_{stream_};
};

TEST_F(ResponseWriterTest, AShortAnswerHasALength) {
  HttpResponse response;
  response.body = "hello";
  response.headers = {{"X-A", "b"}};
  writer_.Put(kHead, std::move(response));
  EXPECT_TRUE(writer_.ended());
  EXPECT_FALSE(writer_.all_in_flight());
  EXPECT_EQ(Sent(), kHead + "X-A: b\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_TRUE(writer_.all_in_flight());
  writer_.NextAnswer();
  EXPECT_FALSE(writer_.ended());
  writer_.Put(kHead, {});
  EXPECT_EQ(Sent(), kHead + "Content-Length: 0\r\n\r\n");
}

TEST_F(ResponseWriterTest, GatherMakesShortBodiesWhole) {
  const HttpResponse one = ResponseOf(Letters(1));
  EXPECT_FALSE(one.rest);
  EXPECT_EQ(one.body, LettersText(1));
  const HttpResponse none = ResponseOf(Letters(0));
  EXPECT_FALSE(none.rest);
  EXPECT_EQ(none.body, "");
  const HttpResponse many = ResponseOf(Letters(20));
  EXPECT_TRUE(many.rest);
  EXPECT_EQ(many.body, LettersText(2));
}

TEST_F(ResponseWriterTest, ALongAnswerComesInChunksThatAreMadeAsTheyAreSent) {
  writer_.Put(kHead, ResponseOf(Letters(20)));
  EXPECT_FALSE(writer_.ended());
  EXPECT_LT(writer_.held_bytes(), kMaxHeldBytes);
  const std::string sent = Sent();
  EXPECT_TRUE(writer_.ended());
  const std::string head = kHead + "Transfer-Encoding: chunked\r\n\r\n";
  ASSERT_TRUE(sent.starts_with(head)) << sent.substr(0, 200);
  EXPECT_TRUE(Joined(std::string_view(sent).substr(head.size())) == LettersText(20));
  EXPECT_LT(writer_.held_bytes(), kMaxHeldBytes);
}

TEST_F(ResponseWriterTest, Http10GetsNoChunks) {
  writer_.SetRequest({.version = HttpVersion::k10});
  EXPECT_FALSE(writer_.frames());
  writer_.Put(kHead, ResponseOf(Letters(3)));
  EXPECT_TRUE(Sent() == kHead + "\r\n" + LettersText(3));
  EXPECT_TRUE(writer_.ended());
}

TEST_F(ResponseWriterTest, AnAnswerToHeadHasNoBody) {
  writer_.SetRequest({.is_head = true});
  HttpResponse response;
  response.body = "hello";
  writer_.Put(kHead, std::move(response));
  EXPECT_EQ(Sent(), kHead + "Content-Length: 5\r\n\r\n");
  writer_.NextAnswer();
  writer_.Put(kHead, ResponseOf(Letters(3)));
  EXPECT_TRUE(writer_.ended());
  EXPECT_EQ(Sent(), kHead + "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_FALSE(writer_.Advance());
  writer_.NextAnswer();
  writer_.SetRequest({});
  HttpResponse next;
  next.body = "there";
  writer_.Put(kHead, std::move(next));
  EXPECT_TRUE(Sent().ends_with("\r\n\r\nthere"));
}

TEST_F(ResponseWriterTest, WhatIsPutDuringAWriteWaitsInOrder) {
  writer_.PutStreamHead(kHead);
  bool written = false;
  writer_.Write([&](SystemErrorCode ec) {
    EXPECT_FALSE(ec);
    written = true;
  });
  writer_.PutStreamText("one");
  writer_.PutStreamText(std::string(10'000, 'x'));
  EXPECT_TRUE(writer_.writing());
  EXPECT_GT(writer_.held_bytes(), 10'000u);
  RunUntil(written);
  EXPECT_TRUE(writer_.Advance());  // the waiting part
  writer_.PutStreamEnd();
  EXPECT_FALSE(writer_.all_in_flight());
  EXPECT_EQ(Sent(), kHead +
                        "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n2710\r\n" +
                        std::string(10'000, 'x') + "\r\n0\r\n\r\n");
  EXPECT_FALSE(writer_.Advance());
  EXPECT_TRUE(writer_.all_in_flight());
}

TEST_F(ResponseWriterTest, DroppedPartsAreNotMade) {
  writer_.Put(kHead, ResponseOf(Letters(20)));
  writer_.DropParts();
  EXPECT_LT(Sent().size(), LettersText(3).size());
  EXPECT_FALSE(writer_.ended());
}

TEST_F(ResponseWriterTest, ALostConnectionIsTold) {
  sockets_.server.close();
  writer_.Put(kHead, {});
  EXPECT_TRUE(Write());
}

}  // namespace
}  // namespace kvasir
