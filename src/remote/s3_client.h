// S3Client: a StoreClient of a bucket of S3, or of a store that speaks its protocol.
#pragma once

#include <memory>
#include <string>

#include "remote/remote_address.h"
#include "remote/s3_access.h"
#include "remote/store_client.h"

namespace kvasir {

// Each request is one transfer of HTTP/1.1 over libcurl, kTransfers at once at most; the others
// wait. A transfer that fails, or is answered by a status of 500 or more, is begun once more, since
// a store may close a connection or say InternalError or SlowDown at any time.
// Lifetimes are the bucket's.
class S3Client : public StoreClient {
 public:
  // A lookup's 32 names and its owner's object.
  static constexpr size_t kTransfers = 33;

  // kIoError: libcurl is missing.
  static Result<std::unique_ptr<S3Client>> Create(const RemoteAddress& address,
                                                  const S3Access& access);
  static uint64_t BytesFor(const RemoteAddress& address);
  ~S3Client() override;

  // Takes the addresses; the first request connects.
  Status Open(const SocketAddresses& at, const Waits& waits) override;
  bool is_open() const override { return sockets_ != nullptr; }
  void Close() override;
  void CloseStale() override {}  // libcurl looks at a connection before it uses it again
  Status Ping(const Waits& waits) override;
  Status Start(StoreRequest request, const Waits& waits) override;
  Result<StoreReply> Next(const Waits& waits) override;
  Result<StoreReply> Watch(const std::string& name, std::span<std::byte> into,
                           const Waits& waits) override;
  Result<bool> Replace(const std::string& name, std::span<const std::byte> value,
                       const Waits& waits) override;
  Status Unwatch(const Waits&) override { return {}; }
  Result<StorePage> List(const std::string& below, const std::string& page,
                         const Waits& waits) override;

 private:
  struct Sockets;  // of libcurl
  struct Transfer;
  struct Task;  // a request, as HTTP

  S3Client(RemoteAddress address, S3Access access);
  Task TaskOf(StoreRequest request) const;
  Task ListTask(const std::string& below, const std::string& after, size_t most) const;
  // Begins tasks that wait, as many as there is room for.
  Status BeginTasks();
  // Waits until a transfer has ended, and returns it.
  Result<std::unique_ptr<Transfer>> NextEnded(const Waits& waits);
  Result<std::unique_ptr<Transfer>> Do(Task task, const Waits& waits);
  tl::unexpected<Error> Closed(Error error);

  const RemoteAddress address_;  // with `s3`
  const S3Access access_;
  std::unique_ptr<Sockets> sockets_;  // nullptr: closed
  std::string seen_;                  // the ETag that Watch saw; "": there was nothing
};

}  // namespace kvasir
