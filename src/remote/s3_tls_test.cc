// A store of S3 over https: what is believed, and what its connections take.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/certificates_for_test.h"
#include "base/needs_for_test.h"
#include "remote/remote_on_fake_for_test.h"
#include "remote/s3_client.h"
#include "remote/s3_fake_for_test.h"

namespace kvasir {
namespace {

using What = StoreRequest::What;

constexpr const char* kSystemCertificates = "/etc/ssl/certs/ca-certificates.crt";

size_t BytesInUse() {  // of the main thread's arena
  const struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

class S3Tls : public testing::Test {
 protected:
  void SetUp() override {
    mallopt(M_ARENA_MAX, 256);  // the store's threads allocate elsewhere
    certificates_.Sign("server", "IP:127.0.0.1", 3600);
    fake_ = std::make_unique<S3Fake>(
        [](const S3Fake::Request&) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return S3Fake::Response("200 OK", std::string(kValueBytes, 'v'));
        },
        &certificates_);
  }
  std::unique_ptr<S3Client> Connect(const std::string& ca_file) {
    auto made = S3Client::Create(
        fake_->address(),
        {.credentials = {.key_id = "KEY", .secret = "secret"}, .ca_file = ca_file});
    EXPECT_TRUE(made) << made.error().message;
    EXPECT_TRUE((*made)->Open(*Resolve(fake_->address()), waits_));
    return std::move(*made);
  }

  static constexpr size_t kValueBytes = 200'000;
  const StoreClient::Waits waits_ = [] { return true; };
  TestCertificates certificates_{testing::TempDir()};
  std::unique_ptr<S3Fake> fake_;
};

TEST_F(S3Tls, WhoIsNotVerifiedIsNotAsked) {
  std::vector<std::byte> into(kValueBytes);
  const StoreRequest get{.what = What::kGet, .id = 1, .name = "n", .into = into};
  const auto client = Connect(certificates_.ca_file());
  const auto reply = client->Ask(get, waits_);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->bytes, kValueBytes);
  const size_t asked = fake_->requests().size();
  const TestCertificates others(testing::TempDir());
  for (const std::string& file : {others.ca_file(), std::string()}) {
    const auto refused = Connect(file)->Ask(get, waits_);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("certificate"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_EQ(fake_->requests().size(), asked);
}

// Each connection would have the certificates of all authorities, if they did not share them.
TEST_F(S3Tls, ConnectionsTakeNoMoreThanIsPlanned) {
  KV_NEEDS(kSystemCertificates);
  const std::string all = certificates_.ca_file() + "s";
  std::filesystem::copy_file(kSystemCertificates, all);
  std::ofstream(all, std::ios::app) << std::ifstream(certificates_.ca_file()).rdbuf();
  std::vector<std::byte> into(3 * S3Client::kTransfers * kValueBytes);
  (void)Connect(all)->Ask({.what = What::kFind, .name = "n"}, waits_);  // what stays is there
  const size_t before = BytesInUse();
  size_t most = before;
  const auto client = Connect(all);
  (void)client->Ask({.what = What::kFind, .name = "n"}, waits_);
  const size_t one = BytesInUse() - before;
  for (size_t i = 0; i < 3 * S3Client::kTransfers; ++i) {
    ASSERT_TRUE(client->Start({.what = What::kGet,
                               .id = i,
                               .name = std::to_string(i),
                               .into = std::span(into).subspan(i * kValueBytes, kValueBytes)},
                              waits_));
  }
  for (size_t i = 0; i < 3 * S3Client::kTransfers; ++i) {
    const auto reply = client->Next([&] {
      most = std::max(most, BytesInUse());
      return true;
    });
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->bytes, kValueBytes);
  }
  EXPECT_GT(fake_->num_connections(), S3Client::kTransfers / 2);
  EXPECT_LT(most - before, S3Client::BytesFor(fake_->address()));
  RecordProperty("bytes", std::to_string(most - before));
  RecordProperty("one", std::to_string(one));
  RecordProperty("connections", std::to_string(fake_->num_connections()));
}

}  // namespace
}  // namespace kvasir
