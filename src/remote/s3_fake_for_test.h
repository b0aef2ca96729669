// S3Fake: a store of a test that answers requests of HTTP as the test wants.
#pragma once

#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/certificates_for_test.h"
#include "base/check.h"
#include "base/mutex.h"
#include "remote/connection_threads_for_test.h"
#include "remote/remote_address.h"

namespace kvasir {

// A thread for each connection; ends with the object. It may speak TLS, with a certificate for
// 127.0.0.1.
class S3Fake {
 public:
  struct Request {
    std::string method, target;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
  };
  // Returns the bytes that are sent; "": the connection is closed. Several connections call it at
  // once.
  using Answers = std::function<std::string(const Request&)>;

  explicit S3Fake(Answers answers, const TestCertificates* tls = nullptr)
      : answers_(std::move(answers)),
        tls_(ContextOf(tls)),
        connections_([this](int fd) { Serve(fd); }) {}

  RemoteAddress address() const {
    return {.host = "127.0.0.1",
            .port = connections_.port(),
            .user = {},
            .has_tls = tls_ != nullptr,
            .s3 = S3Bucket{.name = "bucket", .prefix = "some/", .region = "eu-central-1"}};
  }
  std::vector<Request> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }
  size_t num_connections() { return connections_.num_accepted(); }

  // Returns a response with a body.
  static std::string Response(const std::string& status, std::string_view body,
                              const std::string& headers = "") {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
           headers + "\r\n" + std::string(body);
  }

 private:
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;  // nullptr: without TLS
  static Context ContextOf(const TestCertificates* tls) {
    if (tls == nullptr) return {nullptr, &SSL_CTX_free};
    Context context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
    KV_CHECK(SSL_CTX_use_certificate_file(context.get(), tls->CertificateFile("server").c_str(),
                                          SSL_FILETYPE_PEM) == 1 &&
             SSL_CTX_use_PrivateKey_file(context.get(), tls->KeyFile("server").c_str(),
                                         SSL_FILETYPE_PEM) == 1);
    return context;
  }
  using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;  // nullptr: without TLS
  struct Peer {
    int fd;
    Session tls;

    bool More(std::string* bytes) {
      if (!tls) return ConnectionThreads::Receive(fd, bytes);
      char some[65536];
      const int got = SSL_read(tls.get(), some, sizeof(some));
      if (got > 0) bytes->append(some, static_cast<size_t>(got));
      return got > 0;
    }
    bool Send(std::string_view bytes) {
      if (!tls) return ConnectionThreads::Send(fd, bytes);
      while (!bytes.empty()) {
        const int sent = SSL_write(tls.get(), bytes.data(), static_cast<int>(bytes.size()));
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
      return true;
    }
  };
  Session SessionOn(int fd) const {
    if (tls_ == nullptr) return {nullptr, &SSL_free};
    sigset_t signals;  // OpenSSL's writes may raise SIGPIPE
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    Session session(SSL_new(tls_.get()), &SSL_free);
    SSL_set_fd(session.get(), fd);
    SSL_set_accept_state(session.get());
    return session;
  }
  void Serve(int fd) {
    Peer peer{fd, SessionOn(fd)};
    std::string bytes;
    for (bool goes_on = true; goes_on;) {
      size_t end;
      while ((end = bytes.find("\r\n\r\n")) == std::string::npos && goes_on) {
        goes_on = peer.More(&bytes);
      }
      if (!goes_on) break;
      Request request = Parse(bytes.substr(0, end + 2));
      bytes.erase(0, end + 4);
      const auto length =
          static_cast<size_t>(std::atoll(request.headers["content-length"].c_str()));
      if (request.headers.contains("expect")) peer.Send("HTTP/1.1 100 Continue\r\n\r\n");
      while (bytes.size() < length && goes_on) goes_on = peer.More(&bytes);
      if (!goes_on) break;
      request.body = bytes.substr(0, length);
      bytes.erase(0, length);
      {
        MutexLock lock(mutex_);
        requests_.push_back(request);
      }
      const std::string answer = answers_(request);
      goes_on = !answer.empty() && peer.Send(answer);
    }
  }
  static Request Parse(std::string_view head) {
    Request request;
    const size_t first = head.find(' '), second = head.find(' ', first + 1);
    request.method = head.substr(0, first);
    request.target = head.substr(first + 1, second - first - 1);
    for (head.remove_prefix(head.find("\r\n") + 2); !head.empty();) {
      const std::string_view line = head.substr(0, head.find("\r\n"));
      head.remove_prefix(line.size() + 2);
      const size_t colon = line.find(": ");
      if (colon == std::string_view::npos) continue;
      request.headers[LowerAscii(line.substr(0, colon))] = line.substr(colon + 2);
    }
    return request;
  }

  const Answers answers_;
  const Context tls_;
  Mutex mutex_;
  std::vector<Request> requests_ KV_GUARDED_BY(mutex_);
  ConnectionThreads connections_;  // last: its threads use the others
};

}  // namespace kvasir
