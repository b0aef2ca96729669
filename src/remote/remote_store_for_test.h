// RemoteStoreForTest: a real store of a test that any remote tier may use.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "base/certificates_for_test.h"
#include "remote/redis_cluster_for_test.h"
#include "remote/redis_server_for_test.h"
#include "remote/s3_access.h"
#include "remote/tls_stream.h"

namespace kvasir {

// Returns the URL of a store of S3; nullptr: there is none. tests/s3_store_test.py starts one, and
// sets the variables of its credentials.
inline const char* S3Url() { return std::getenv("KVASIR_TEST_S3"); }

struct RemoteStoreForTest {
  RemoteAddress address = {};  // without a host: there is no store
  S3Access s3 = {};
  std::shared_ptr<const TlsContext> tls = {};
  std::unique_ptr<RedisServer> redis = {};

  bool is_there() const { return !address.host.empty(); }

  static RemoteStoreForTest Redis() {
    RemoteStoreForTest store{.redis = RedisServer::Start()};
    if (store.redis) store.address = store.redis->address();
    return store;
  }
  // Returns one that speaks TLS, with a certificate that the test has made.
  static RemoteStoreForTest Tls() {
    TestCertificates certificates(testing::TempDir());
    certificates.Sign("server", "IP:127.0.0.1", 3600);
    RemoteStoreForTest store{
        .tls = *TlsContext::Create(certificates.ca_file()),
        .redis = RedisServer::Start({"--tls-port", RedisServer::kPort, "--tls-cert-file",
                                     certificates.CertificateFile("server"), "--tls-key-file",
                                     certificates.KeyFile("server"), "--tls-ca-cert-file",
                                     certificates.ca_file(), "--tls-auth-clients", "no"})};
    if (!store.redis) return store;
    store.address = store.redis->address();
    store.address.port = store.redis->ports()[0];
    store.address.has_tls = true;
    return store;
  }
  static RemoteStoreForTest Cluster() {
    RedisCluster* const cluster = RedisCluster::Shared();
    return {.address = cluster != nullptr ? cluster->address() : RemoteAddress()};
  }
  // Returns a separate part of the bucket for each call.
  static RemoteStoreForTest S3() {
    static int calls = 0;
    RemoteStoreForTest store{.address = *ParseRemoteAddress(S3Url())};
    store.address.s3->prefix = std::to_string(getpid()) + "-" + std::to_string(++calls) + "/";
    store.s3.credentials = {.key_id = std::getenv("AWS_ACCESS_KEY_ID"),
                            .secret = std::getenv("AWS_SECRET_ACCESS_KEY")};
    return store;
  }
};

}  // namespace kvasir
