// S3Client: what it asks, and what stores that answer wrongly may do to it.
#include "remote/s3_client.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/hex.h"
#include "remote/remote_on_fake_for_test.h"
#include "remote/s3_fake_for_test.h"
#include "remote/s3_reply.h"

namespace kvasir {
namespace {

using Outcome = StoreReply::Outcome;
using What = StoreRequest::What;

std::string S3Error(const std::string& code) {
  return "<?xml version=\"1.0\"?><Error><Code>" + code +
         "</Code><Message>It &amp; that.</Message></Error>";
}

// A client of a fake store.
class S3ClientOnFake : public testing::Test {
 protected:
  void Start(S3Fake::Answers answers) {
    fake_ = std::make_unique<S3Fake>(std::move(answers));
    auto made = S3Client::Create(
        fake_->address(), {.credentials = {.key_id = "KEY", .secret = "secret"}, .ca_file = {}});
    ASSERT_TRUE(made) << made.error().message;
    client_ = std::move(*made);
    ASSERT_TRUE(client_->Open(*Resolve(fake_->address()), waits_));
  }
  StoreReply Ask(StoreRequest request) {
    if (!client_->is_open()) {
      EXPECT_TRUE(client_->Open(*Resolve(fake_->address()), waits_));
    }
    auto reply = client_->Ask(std::move(request), waits_);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply.value_or(StoreReply{.outcome = Outcome::kRefused});
  }

  const StoreClient::Waits waits_ = [] { return true; };
  std::unique_ptr<S3Fake> fake_;
  std::unique_ptr<S3Client> client_;
  std::array<std::byte, 16> into_;
};

TEST_F(S3ClientOnFake, ARequestIsAnObjectsAndSigned) {
  Start([](const S3Fake::Request& request) {
    if (request.method == "GET") return S3Fake::Response("200 OK", "value");
    return S3Fake::Response(request.method == "DELETE" ? "204 No Content" : "200 OK", "");
  });
  const std::string value(2'000'000, 'v');  // for which libcurl waits to be asked
  const auto bytes = std::as_bytes(std::span(value));
  EXPECT_TRUE(Ask({.what = What::kPut, .name = "a/b", .value = bytes, .ttl_s = 60}).is_done());
  EXPECT_TRUE(Ask({.what = What::kPutNew, .name = "a/b", .value = bytes}).is_done());
  EXPECT_EQ(Ask({.what = What::kGet, .name = "a/b", .into = into_, .ttl_s = 60}).bytes, 5u);
  EXPECT_EQ(Ask({.what = What::kPeek, .name = "a/b", .into = into_}).bytes, 5u);
  EXPECT_TRUE(Ask({.what = What::kFind, .name = "a/b"}).is_done());
  EXPECT_TRUE(Ask({.what = What::kRemove, .name = "a/b"}).is_done());
  const std::vector<S3Fake::Request> requests = fake_->requests();
  ASSERT_EQ(requests.size(), 6u);
  const char* const methods[] = {"PUT", "PUT", "GET", "GET", "HEAD", "DELETE"};
  for (size_t i = 0; i < requests.size(); ++i) {
    const S3Fake::Request& one = requests[i];
    EXPECT_EQ(one.method, methods[i]);
    EXPECT_EQ(one.target, "/bucket/some/a/b");
    EXPECT_EQ(one.headers.at("x-amz-content-sha256"), ToHex(Sha256Of(one.body)));
    EXPECT_EQ(one.headers.at("x-amz-date").size(), 16u);
    EXPECT_TRUE(one.headers.at("authorization").starts_with("AWS4-HMAC-SHA256 Credential=KEY/"));
    EXPECT_NE(one.headers.at("authorization").find("/eu-central-1/s3/aws4_request,"),
              std::string::npos);
    if (one.headers.contains("expect")) {
      EXPECT_EQ(one.headers.at("expect"), "100-continue");
    }
    EXPECT_EQ(one.body, i < 2 ? value : "");
  }
  EXPECT_FALSE(requests[0].headers.contains("if-none-match"));
  EXPECT_EQ(requests[1].headers.at("if-none-match"), "*");
  EXPECT_EQ(requests[3].headers.at("range"), "bytes=0-15");
  EXPECT_EQ(fake_->num_connections(), 1u) << "one after the other";
}

TEST_F(S3ClientOnFake, WhatAnAnswerMeans) {
  struct Case {
    What what;
    std::string status, body;
    Outcome outcome;
    std::string words = {};
  };
  for (const Case& one : {
           Case{What::kGet, "404 Not Found", S3Error("NoSuchKey"), Outcome::kNot},
           Case{What::kGet, "404 Not Found", S3Error("NoSuchBucket"), Outcome::kRefused,
                "NoSuchBucket: It & that."},
           Case{What::kPeek, "206 Partial Content", "0123456789abcdef", Outcome::kDone},
           Case{What::kPeek, "200 OK", "0123456789abcdefX", Outcome::kForeign},
           Case{What::kPeek, "416 Range Not Satisfiable", S3Error("InvalidRange"),
                Outcome::kForeign},
           Case{What::kGet, "200 OK", "0123456789abcdefX", Outcome::kForeign},
           Case{What::kFind, "404 Not Found", "", Outcome::kNot},
           Case{What::kFind, "403 Forbidden", "", Outcome::kRefused,
                "the store answers with status 403"},
           Case{What::kRemove, "204 No Content", "", Outcome::kDone},
           Case{What::kRemove, "404 Not Found", S3Error("NoSuchKey"), Outcome::kNot},
           Case{What::kPut, "403 Forbidden", S3Error("RequestTimeTooSkewed"), Outcome::kRefused,
                "RequestTimeTooSkewed: It & that."},
           Case{What::kPut, "503 Slow Down", "no\x01xml", Outcome::kRefused,
                "the store answers with status 503"},
           Case{What::kPutNew, "412 Precondition Failed", S3Error("PreconditionFailed"),
                Outcome::kNot},
           Case{What::kPutNew, "409 Conflict", S3Error("ConditionalRequestConflict"),
                Outcome::kNot},
           Case{What::kGet, "301 Moved", S3Error("PermanentRedirect"), Outcome::kRefused,
                "PermanentRedirect: It & that."},
       }) {
    // A HEAD has no body.
    Start([&](const S3Fake::Request& request) {
      return S3Fake::Response(one.status, request.method == "HEAD" ? "" : one.body);
    });
    const bool reads = one.what == What::kGet || one.what == What::kPeek;
    const StoreReply reply =
        Ask({.what = one.what,
             .id = 9,
             .name = "n",
             .into = reads ? std::span<std::byte>(into_) : std::span<std::byte>()});
    EXPECT_EQ(reply.outcome, one.outcome) << one.status << one.body;
    EXPECT_EQ(reply.words, one.words);
    EXPECT_EQ(reply.is_passing, one.status[0] == '5');
    EXPECT_EQ(reply.id, 9u);
  }
}

// A length beyond what is wanted ends the transfer, and costs no memory.
TEST_F(S3ClientOnFake, WhatIsTooLongIsNotTaken) {
  std::atomic<int> asked = 0;
  for (const std::string head : {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    asked = 0;
    Start([&](const S3Fake::Request&) {
      ++asked;
      std::string chunk = "ffff\r\n" + std::string(65535, 'x') + "\r\n";
      return head + chunk + chunk;
    });
    const StoreReply reply = Ask({.what = What::kGet, .name = "n", .into = into_});
    EXPECT_EQ(reply.outcome, Outcome::kForeign);
    EXPECT_EQ(asked, 1);
    EXPECT_TRUE(client_->is_open());
  }
  // Headers, error pages and lists without an end.
  const std::string many(200'000, 'x');
  Start([&](const S3Fake::Request&) {
    return "HTTP/1.1 200 OK\r\nx-a: " + many.substr(0, 50'000) + "\r\nContent-Length: 0\r\n\r\n";
  });
  EXPECT_FALSE(client_->Ask({.what = What::kFind, .name = "n"}, waits_));
  EXPECT_FALSE(client_->is_open());
  Start([&](const S3Fake::Request&) { return S3Fake::Response("500 Error", many); });
  EXPECT_TRUE(Ask({.what = What::kGet, .name = "n", .into = into_}).is_refused());
  Start([&](const S3Fake::Request&) {
    std::string list = "<ListBucketResult>";
    while (list.size() < 1'000'000) list += "<Contents><Key>some/n</Key></Contents>";
    return S3Fake::Response("200 OK", list + "</ListBucketResult>");
  });
  const auto listed = client_->List("n", "", waits_);
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code, Code::kCorruption);
}

TEST_F(S3ClientOnFake, OneThatBreaksOffIsAskedOnceMore) {
  std::atomic<int> asked = 0;
  Start([&](const S3Fake::Request&) {
    return ++asked % 2 == 1 ? std::string() : S3Fake::Response("200 OK", "value");
  });
  EXPECT_EQ(Ask({.what = What::kGet, .name = "n", .into = into_}).bytes, 5u);
  EXPECT_EQ(asked, 2);
  Start([&](const S3Fake::Request&) { return std::string("HTTP/1.1 200 OK\r\nContent-Le"); });
  const auto broken = client_->Ask({.what = What::kFind, .name = "n"}, [start = MonotonicNs()] {
    return MonotonicNs() < start + 300'000'000;
  });
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::kCancelled) << broken.error().message;
  EXPECT_FALSE(client_->is_open());
  Start([&](const S3Fake::Request&) { return std::string("garbage\r\n\r\n"); });
  const auto garbage = client_->Ask({.what = What::kFind, .name = "n"}, waits_);
  ASSERT_FALSE(garbage);
  EXPECT_EQ(garbage.error().code, Code::kIoError);
}

// InternalError and SlowDown are ordinary answers of S3, which wants to be asked again.
TEST_F(S3ClientOnFake, WhatIsRefusedForAWhileIsAskedOnceMore) {
  Mutex mutex;
  std::vector<std::string> bodies;
  size_t num_refused = 1;
  Start([&](const S3Fake::Request& request) {
    MutexLock lock(mutex);
    bodies.push_back(request.body);
    const bool is_refused = bodies.size() <= num_refused;
    return is_refused ? S3Fake::Response("503 Slow Down", S3Error("SlowDown"))
                      : S3Fake::Response("200 OK", "");
  });
  const std::string value(100'000, 'v');
  const auto bytes = std::as_bytes(std::span(value));
  EXPECT_TRUE(Ask({.what = What::kPut, .name = "n", .value = bytes}).is_done());
  EXPECT_EQ(bodies, std::vector<std::string>(2, value));
  bodies.clear();
  num_refused = 100;
  const StoreReply reply = Ask({.what = What::kPut, .name = "n", .value = bytes});
  EXPECT_TRUE(reply.is_refused() && reply.is_passing);
  EXPECT_EQ(reply.words, "SlowDown: It & that.");
  EXPECT_EQ(bodies.size(), 2u);
  EXPECT_TRUE(client_->is_open());
}

TEST_F(S3ClientOnFake, SoManyTransfersRunAtOnce) {
  Mutex mutex;
  size_t now = 0, most = 0;
  Start([&](const S3Fake::Request& request) {
    {
      MutexLock lock(mutex);
      most = std::max(most, ++now);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    MutexLock lock(mutex);
    --now;
    return S3Fake::Response("200 OK", request.target.substr(13));
  });
  constexpr size_t kAsked = 300;
  std::vector<std::array<std::byte, 16>> into(kAsked);
  for (size_t i = 0; i < kAsked; ++i) {
    ASSERT_TRUE(client_->Start(
        {.what = What::kGet, .id = i, .name = std::to_string(i), .into = into[i]}, waits_));
  }
  std::set<uint64_t> ended;
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = in_use();
  size_t most_bytes = 0;
  for (size_t i = 0; i < kAsked; ++i) {
    const auto reply = client_->Next([&] {
      most_bytes = std::max(most_bytes, in_use());
      return true;
    });
    ASSERT_TRUE(reply) << reply.error().message;
    ended.insert(reply->id);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(into[reply->id].data()), reply->bytes),
              std::to_string(reply->id));
  }
  EXPECT_EQ(ended.size(), kAsked);
  EXPECT_LE(most, S3Client::kTransfers);
  EXPECT_GT(most, 8u);
  EXPECT_LE(fake_->num_connections(), S3Client::kTransfers);
  EXPECT_LT(most_bytes, before + S3Client::BytesFor(fake_->address()));
  RecordProperty("bytes", std::to_string(most_bytes - std::min(before, most_bytes)));
}

TEST_F(S3ClientOnFake, AReplacementNamesWhatWasSeen) {
  std::string now = "a", status = "200 OK";
  Start([&](const S3Fake::Request& request) {
    if (request.method == "GET" && now.empty()) {
      return S3Fake::Response("404 Not Found", S3Error("NoSuchKey"));
    }
    return S3Fake::Response(request.method == "GET" ? "206 Partial Content" : status, now,
                            "ETag: \"" + now + "\"\r\n");
  });
  const auto value = std::as_bytes(std::span("new", 3));
  ASSERT_TRUE(client_->Watch("n", into_, waits_)->is_done());
  EXPECT_EQ(client_->Replace("n", value, waits_), true);
  EXPECT_EQ(fake_->requests().back().headers.at("if-match"), "\"a\"");
  for (const char* changed : {"412 Precondition Failed", "409 Conflict", "404 Not Found"}) {
    ASSERT_TRUE(client_->Watch("n", into_, waits_)->is_done());
    status = changed;
    EXPECT_EQ(client_->Replace("n", value, waits_), false) << changed;
  }
  ASSERT_TRUE(client_->Watch("n", into_, waits_));
  status = "501 Not Implemented";
  EXPECT_EQ(client_->Replace("n", value, waits_).error().code, Code::kUnavailable);
  now.clear();
  status = "200 OK";
  EXPECT_EQ(client_->Watch("n", into_, waits_)->outcome, Outcome::kNot);
  EXPECT_EQ(client_->Replace("n", value, waits_), true);
  EXPECT_EQ(fake_->requests().back().headers.at("if-none-match"), "*");
}

TEST_F(S3ClientOnFake, AListGoesOnWhereItWasCut) {
  Start([&](const S3Fake::Request& request) {
    const bool is_last = request.target.find("start-after") != std::string::npos;
    return S3Fake::Response(
        "200 OK", std::string("<ListBucketResult><IsTruncated>") + (is_last ? "false" : "true") +
                      "</IsTruncated><Contents><Key>some/n/" + (is_last ? "2" : "1") +
                      "</Key></Contents></ListBucketResult>");
  });
  const auto first = client_->List("n/", "", waits_);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->names, std::vector<std::string>{"n/1"});
  const auto last = client_->List("n/", first->next, waits_);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->names, std::vector<std::string>{"n/2"});
  EXPECT_EQ(last->next, "");
  EXPECT_EQ(fake_->requests()[1].target,
            "/bucket?list-type=2&max-keys=500&prefix=some%2Fn%2F&start-after=some%2Fn%2F1");
  const auto foreign = client_->List("m/", "", waits_);
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, Code::kCorruption);
}

TEST_F(S3ClientOnFake, AListThatGoesOnAndNamesNothingIsNotTheWholeOne) {
  Start([](const S3Fake::Request&) {
    return S3Fake::Response("200 OK",
                            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>");
  });
  const auto list = client_->List("n/", "", waits_);
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, Code::kCorruption);
}

TEST(S3Reply, WhatIsNoListIsRefused) {
  for (const char* xml :
       {"", "<Error/>", "<ListBucketResult>", "<ListBucketResult><Contents><Key>a",
        "<ListBucketResult><Contents></Contents></ListBucketResult>"}) {
    EXPECT_FALSE(ReadS3List(xml, 10)) << xml;
  }
  const auto list = ReadS3List(
      "<ListBucketResult xmlns=\"x\"><Contents><Key>a&amp;b</Key></Contents></ListBucketResult>",
      1);
  ASSERT_TRUE(list);
  EXPECT_EQ(list->names, std::vector<std::string>{"a&b"});
  EXPECT_FALSE(
      ReadS3List("<ListBucketResult><Contents><Key>a</Key></Contents><Contents><Key>b"
                 "</Key></Contents></ListBucketResult>",
                 1));
  EXPECT_LE(S3ErrorWords(500, "<Code>" + std::string(5000, 'x') + "</Code>").size(), 300u);
}

TEST(S3Address, SaysWhatIsWrong) {
  const auto aws = ParseRemoteAddress("s3://my-bucket/a/b/?region=eu-west-1");
  ASSERT_TRUE(aws) << aws.error().message;
  EXPECT_EQ(aws->host, "my-bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(aws->port, 443);
  EXPECT_TRUE(aws->has_tls && aws->s3->is_in_host);
  EXPECT_EQ(aws->s3->prefix, "a/b/");
  EXPECT_EQ(aws->text(), "my-bucket.s3.eu-west-1.amazonaws.com:443/a/b");
  const auto dots = ParseRemoteAddress("s3://my.bucket");
  EXPECT_EQ(dots->host, "s3.us-east-1.amazonaws.com");
  EXPECT_EQ(dots->text(), "s3.us-east-1.amazonaws.com:443/my.bucket");
  const auto own = ParseRemoteAddress("s3://bucket?endpoint=http%3A%2F%2F[::1]:9000/&region=r");
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(own->host, "::1");
  EXPECT_EQ(own->port, 9000);
  EXPECT_FALSE(own->has_tls);
  EXPECT_EQ(own->text(), "[::1]:9000/bucket");
  EXPECT_EQ(ParseRemoteAddress("s3://bucket?endpoint=https://host")->port, 443);
  for (const char* url :
       {"s3://", "s3://ab", "s3:///prefix", "s3://bu cket", "s3://bucket//a", "s3://bucket/a//b",
        "s3://bucket/a%20b", "s3://bucket?zone=a", "s3://bucket?region=", "s3://bucket?region=a/b",
        "s3://bucket?endpoint=host:9000", "s3://bucket?endpoint=http://", "s3://bucket?region=%4",
        "s3://bucket?endpoint=http://host:0", "s3://bucket?endpoint=http://host/path"}) {
    const auto wrong = ParseRemoteAddress(url);
    ASSERT_FALSE(wrong) << url;
    EXPECT_EQ(wrong.error().field, "remote") << url;
    EXPECT_NE(wrong.error().message.find("s3://BUCKET"), std::string::npos) << url;
  }
  for (const char* url : {"s3://KEY:secret@bucket", "s3://b?endpoint=http://k:secret@host"}) {
    const auto wrong = ParseRemoteAddress(url);
    ASSERT_FALSE(wrong) << url;
    EXPECT_EQ(wrong.error().message.find("secret@"), std::string::npos) << wrong.error().message;
  }
}

}  // namespace
}  // namespace kvasir
