// RedisClient: a StoreClient of a Redis or Valkey server, or of a cluster of them.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "remote/redis_slots.h"
#include "remote/store_client.h"

namespace kvasir {

// Commands have one name each and are sent one after the other, without waiting for replies.
// It is a cluster where the server says so when it is asked, or sends a command elsewhere (MOVED):
// then the client has a connection to each master. A command that is sent elsewhere (MOVED; ASK, by
// a slot on its way) is followed up to twenty times: slots may move again meanwhile.
class RedisClient : public StoreClient {
 public:
  // `tls`: where the address wants it.
  RedisClient(RemoteAddress address, std::string password, std::shared_ptr<const TlsContext> tls);

  static uint64_t BytesFor(const RemoteAddress& address);

  Status Open(const SocketAddresses& at, const Waits& waits) override;
  bool is_open() const override;
  void Close() override;
  void CloseStale() override;
  Status Ping(const Waits& waits) override;
  Status Start(StoreRequest request, const Waits& waits) override;
  Result<StoreReply> Next(const Waits& waits) override;
  Result<StoreReply> Watch(const std::string& name, std::span<std::byte> into,
                           const Waits& waits) override;
  Result<bool> Replace(const std::string& name, std::span<const std::byte> value,
                       const Waits& waits) override;
  Status Unwatch(const Waits& waits) override;
  Result<StorePage> List(const std::string& below, const std::string& page,
                         const Waits& waits) override;

  // Returns how many nodes have a connection. For tests.
  size_t num_connections() const;

 private:
  struct Node {
    RedisNode at;
    RedisConnection connection;
    std::string unsent;  // commands
  };
  // A request that was sent.
  struct Flying {
    StoreRequest request;
    uint8_t node = 0;
    bool asks = false;  // by ASKING, since a slot is on its way
    uint8_t moves = 0;  // how often it was sent elsewhere
  };
  // Where List goes on.
  struct Scan {
    size_t node = 0;
    std::string cursor = "0";
    uint32_t rounds = 0;   // over all masters, since slots have moved meanwhile
    uint64_t changes = 0;  // RedisClient::changes_ when the round began
  };

  bool is_cluster() const { return slots_ != nullptr; }
  uint8_t NodeOf(std::string_view name) const;
  // Returns one that has a connection, if there is one.
  Node& AnyNode();
  // Connects to a node where that is closed.
  Status Reach(Node& node, const Waits& waits);
  Status Connect(Node& node, const SocketAddresses& at, const Waits& waits);
  Status Send(Flying one, const Waits& waits);
  Status SendUnsent(Node& node, const Waits& waits);
  Result<StoreReply> ReadReply(const Flying& one, const Waits& waits);
  // Takes what a node says of where a slot is, and returns the number of that node. kUnavailable:
  // there are too many.
  Result<uint8_t> Follow(const RedisRedirect& redirect, uint8_t from);
  // Sends a request on where its reply says so; false: it does not.
  Result<bool> SendOn(Flying one, const StoreReply& reply, const Waits& waits);
  // Asks where the slots are. A store that refuses leaves what is known. REQUIRES: nothing flies.
  Status ReadMap(const Waits& waits);
  void TakeMap(RedisSlots slots);
  // Reads one page of SCAN; true: the node has no more.
  Result<bool> ReadPage(Node& node, const std::string& below, std::vector<std::string>* names,
                        const Waits& waits);
  // Closes all, and returns the error.
  tl::unexpected<Error> Closed(Error error);

  const RemoteAddress address_;
  const std::string password_;
  const std::shared_ptr<const TlsContext> tls_;
  HostLookup lookup_;
  std::vector<std::unique_ptr<Node>> nodes_;  // as slots_ counts them
  std::unique_ptr<RedisSlots> slots_;         // nullptr: not a cluster, as far as is known
  bool wants_map_ = false;
  bool is_open_ = false;
  uint64_t changes_ = 0;  // of slots_
  std::deque<Flying> flying_;
  std::optional<uint8_t> watched_;  // the node that watches a name
  Scan scan_;
};

}  // namespace kvasir
