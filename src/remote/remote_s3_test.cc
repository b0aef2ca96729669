// A remote tier on a store that answers as S3 does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/certificates_for_test.h"
#include "base/mutex.h"
#include "remote/remote_on_fake_for_test.h"
#include "remote/s3_client.h"
#include "remote/s3_fake_for_test.h"

namespace kvasir {
namespace {

// Objects of a bucket.
class S3Objects {
 public:
  std::string Answer(const S3Fake::Request& request) {
    MutexLock lock(mutex_);
    std::string missing = S3Fake::Response("404 Not Found", "");
    if (request.target.starts_with("/bucket?")) return List(request.target);
    const std::string name = request.target.substr(std::string("/bucket/").size());
    const auto found = objects_.find(name);
    const bool is_there = found != objects_.end();
    const std::string etag = is_there ? "\"" + std::to_string(found->second.version) + "\"" : "";
    if (request.method == "DELETE") {  // it says the same where there is none
      if (is_there) objects_.erase(found);
      return S3Fake::Response("204 No Content", "");
    }
    if (request.method == "PUT") {
      const auto none = request.headers.find("if-none-match");
      const auto match = request.headers.find("if-match");
      if ((none != request.headers.end() && is_there) ||
          (match != request.headers.end() && match->second != etag)) {
        return S3Fake::Response("412 Precondition Failed", "");
      }
      objects_[name] = {request.body, ++last_version_};
      return S3Fake::Response("200 OK", "");
    }
    if (!is_there) return missing;
    if (request.method == "HEAD") return S3Fake::Response("200 OK", "");
    const auto range = request.headers.find("range");
    if (range == request.headers.end()) return S3Fake::Response("200 OK", found->second.bytes);
    const auto last =
        static_cast<size_t>(std::atoll(range->second.c_str() + std::string("bytes=0-").size()));
    return S3Fake::Response("206 Partial Content", found->second.bytes.substr(0, last + 1),
                            "ETag: " + etag + "\r\n");
  }

 private:
  struct Object {
    std::string bytes;
    int version = 0;
  };
  // Returns all names of the query's prefix.
  std::string List(const std::string& target) KV_REQUIRES(mutex_) {
    const std::string key = "&prefix=";
    std::string below = target.substr(target.find(key) + key.size());
    below = below.substr(0, below.find('&'));
    for (size_t at; (at = below.find("%2F")) != std::string::npos;) below.replace(at, 3, "/");
    std::string list = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [name, object] : objects_) {
      if (name.starts_with(below)) list += "<Contents><Key>" + name + "</Key></Contents>";
    }
    return S3Fake::Response("200 OK", list + "</ListBucketResult>");
  }

  Mutex mutex_;
  std::map<std::string, Object> objects_ KV_GUARDED_BY(mutex_);
  int last_version_ KV_GUARDED_BY(mutex_) = 0;
};

class RemoteTierOnS3 : public testing::Test {
 protected:
  void SetUp() override {
    RemoteTierOptions options = SmallOptions(fake_.address());
    options.s3.credentials = {.key_id = "KEY", .secret = "secret"};
    auto opened = RemoteTier::Open(options);
    ASSERT_TRUE(opened) << opened.error().message;
    tier_ = std::move(*opened);
    driver_ = std::make_unique<TierDriver>(*tier_);
    ASSERT_TRUE(driver_->WaitUntil([&] { return state() == RemoteStats::State::kOn; }))
        << tier_->Remote().reason;
    ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(0)));
    driver_->Look(FaultRecord(0, 0));
  }
  RemoteStats::State state() const { return tier_->Remote().state; }

  S3Objects objects_;
  std::atomic<int> num_slow_ = 0;  // answers to PUT that are SlowDown
  S3Fake fake_{[this](const S3Fake::Request& request) {
    if (request.method == "PUT" && num_slow_ > 0) {
      --num_slow_;
      return S3Fake::Response("503 Slow Down", "<Error><Code>SlowDown</Code></Error>");
    }
    return objects_.Answer(request);
  }};
  std::unique_ptr<RemoteTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

TEST_F(RemoteTierOnS3, AStoreThatWantsLessTurnsNothingOffAtOnce) {
  num_slow_ = 1;
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  EXPECT_TRUE(driver_->Flush()) << "it was asked once more";
  EXPECT_EQ(driver_->ReadBack(FaultRecord(0, 0)), TierDriver::Read::kRight);
  EXPECT_EQ(tier_->Remote().fault_io, 0u);
  num_slow_ = 2;
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 1)));
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->Remote().fault_io == 1; }));
  EXPECT_EQ(state(), RemoteStats::State::kOn);
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 1)));
  EXPECT_FALSE(driver_->Flush()) << "it tells of what was lost";
  EXPECT_TRUE(driver_->Flush());
  num_slow_ = 1'000'000;
  for (uint32_t i = 2; i < 40 && state() == RemoteStats::State::kOn; ++i) {
    std::ignore = driver_->Write(FaultRecord(i, 0));
    std::ignore = driver_->Flush();
  }
  EXPECT_EQ(state(), RemoteStats::State::kOff);
  EXPECT_EQ(tier_->Remote().reason, "SlowDown");
  EXPECT_GE(tier_->Remote().fault_io, 8u);
}

TEST_F(RemoteTierOnS3, AForgetCountsWhatWasThere) {
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(driver_->Write(FaultRecord(0, i)));
  ASSERT_TRUE(driver_->Flush());
  ForgetFacts facts = TierDriver::ForgetOf(FaultRecord(0, 2), 3);
  for (uint32_t i = 2; i < 40; ++i) facts.keys.push_back(TestRecord::Name(0, i).key);
  const auto forgotten = driver_->Forget(facts);
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->remote->records, 3u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(driver_->ReadBack(FaultRecord(0, i)),
              i < 2 ? TierDriver::Read::kRight : TierDriver::Read::kNotThere)
        << i;
  }
  EXPECT_EQ(driver_->Forget(facts)->remote->records, 0u);
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, 2u);
}

// Each connection begins with a handshake, for which a lookup would have to wait.
TEST(RemoteTierOnHttps, HasConnectedBeforeItsFirstLookup) {
  TestCertificates certificates(testing::TempDir());
  certificates.Sign("server", "IP:127.0.0.1", 3600);
  S3Objects objects;
  // At a distance: where an answer is there at once, one connection does the work of many.
  S3Fake fake(
      [&](const S3Fake::Request& request) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return objects.Answer(request);
      },
      &certificates);
  RemoteTierOptions options = SmallOptions(fake.address());
  options.s3 = {.credentials = {.key_id = "KEY", .secret = "secret"},
                .ca_file = certificates.ca_file()};
  auto opened = RemoteTier::Open(options);
  ASSERT_TRUE(opened) << opened.error().message;
  RemoteTier& tier = **opened;
  TierDriver driver(tier);
  ASSERT_TRUE(driver.WaitUntil([&] { return tier.Remote().state == RemoteStats::State::kOn; }))
      << tier.Remote().reason;
  EXPECT_GE(fake.num_connections(), S3Client::kTransfers / 2);
  ASSERT_TRUE(tier.ReadyOwner(TestRecord::Owner(0)));
  driver.Look(FaultRecord(0, 0));
  LookFor what{.owner = TestRecord::Owner(0), .names = {}};
  for (uint32_t i = 0; i < 100; ++i) what.names.push_back(TestRecord::Name(3, i));
  std::atomic<bool> told = false;
  const size_t asked = fake.requests().size();
  ASSERT_TRUE(tier.Look(what, [&] { told = true; }));
  ASSERT_TRUE(driver.WaitUntil([&] { return told.load(); }));
  EXPECT_GE(fake.requests().size(), asked + S3Client::kTransfers);
  EXPECT_LE(fake.num_connections(), S3Client::kTransfers + 1);
}

}  // namespace
}  // namespace kvasir
