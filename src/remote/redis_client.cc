#include "remote/redis_client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMostUnsent = 65536;  // bytes of commands that wait to be sent together

using What = StoreRequest::What;
using Outcome = StoreReply::Outcome;

StoreReply Refused(uint64_t id, std::string_view words) {
  return {.id = id, .outcome = Outcome::kRefused, .bytes = 0, .words = std::string(words)};
}

}  // namespace

RedisClient::RedisClient(RemoteAddress address, std::string password,
                         std::shared_ptr<const TlsContext> tls)
    : address_(std::move(address)), password_(std::move(password)), tls_(std::move(tls)) {}

uint64_t RedisClient::BytesFor(const RemoteAddress& address) {
  return RedisSlots::kMostNodes *
             (RedisConnection::kBufferBytes + (address.has_tls ? RedisConnection::kTlsBytes : 0)) +
         2 * sizeof(RedisSlots);
}

Status RedisClient::Open(const SocketAddresses& at, const Waits& waits) {
  Close();
  const bool was_cluster = is_cluster();
  auto seed = std::make_unique<Node>();
  seed->at = {address_.host, address_.port};
  Status opened = Connect(*seed, at, waits);
  if (opened) {
    RedisSlots slots;
    slots.nodes.push_back(seed->at);  // has all slots, until the map is read
    nodes_.clear();
    nodes_.push_back(std::move(seed));
    slots_ = was_cluster ? std::make_unique<RedisSlots>(std::move(slots)) : nullptr;
  }
  // A cluster is reached by any of its nodes.
  for (size_t i = 0; !opened && was_cluster && i < nodes_.size(); ++i) {
    if (Reach(*nodes_[i], waits)) opened = {};
  }
  if (!opened) return Closed(std::move(opened).error());
  is_open_ = true;
  // Now, so that a lookup need not wait for it. A store that does not say it is one server.
  KV_TRY(ReadMap(waits));
  for (size_t i = 0; is_cluster() && i < nodes_.size(); ++i) {
    (void)Reach(*nodes_[i], waits);  // one that is down is an error of who needs it
  }
  return {};
}

bool RedisClient::is_open() const { return is_open_; }

void RedisClient::Close() {
  is_open_ = false;
  wants_map_ = is_cluster();
  watched_.reset();
  flying_.clear();
  for (const auto& node : nodes_) {
    node->connection.Close();
    node->unsent.clear();
  }
}

tl::unexpected<Error> RedisClient::Closed(Error error) {
  Close();
  return tl::unexpected(std::move(error));
}

void RedisClient::CloseStale() {
  if (!is_open_) return;
  KV_CHECK(flying_.empty());
  bool any = false;
  for (const auto& node : nodes_) {
    node->connection.CloseStale();
    any |= node->connection.is_open();
  }
  if (!any) Close();
}

size_t RedisClient::num_connections() const {
  return static_cast<size_t>(
      std::ranges::count_if(nodes_, [](const auto& node) { return node->connection.is_open(); }));
}

Status RedisClient::Connect(Node& node, const SocketAddresses& at, const Waits& waits) {
  RemoteAddress address = address_;
  address.host = node.at.host;
  address.port = node.at.port;
  node.unsent.clear();
  return node.connection.Open(address, at, password_, waits, tls_.get());
}

Status RedisClient::Reach(Node& node, const Waits& waits) {
  if (node.connection.is_open()) return {};
  RemoteAddress address = address_;
  address.host = node.at.host;
  address.port = node.at.port;
  KV_ASSIGN(const SocketAddresses at, lookup_.Ask(address, waits));
  const Status opened = Connect(node, at, waits);
  if (opened) return {};
  return Fail(opened.error().code, "{}: {}", address.text(), opened.error().message);
}

RedisClient::Node& RedisClient::AnyNode() {
  const auto open =
      std::ranges::find_if(nodes_, [](const auto& node) { return node->connection.is_open(); });
  return open != nodes_.end() ? **open : *nodes_[0];
}

Status RedisClient::Ping(const Waits& waits) {
  if (!is_open_) return Fail(Code::kIoError, "the connection is closed");
  Node& node = AnyNode();
  if (Status reached = Reach(node, waits); !reached) return Closed(std::move(reached).error());
  auto pong = node.connection.Ask({"PING"}, {}, waits);
  if (!pong) return Closed(std::move(pong).error());
  if (pong->kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", pong->text);
  if (pong->kind == RedisReply::Kind::kText) return {};
  return Closed({Code::kCorruption, "what the store sent is not a reply of Redis"});
}

uint8_t RedisClient::NodeOf(std::string_view name) const {
  return is_cluster() ? slots_->node_of[SlotOf(name)] : uint8_t{0};
}

Status RedisClient::Start(StoreRequest request, const Waits& waits) {
  if (!is_open_) return Fail(Code::kIoError, "the connection is closed");
  if (wants_map_ && flying_.empty()) KV_TRY(ReadMap(waits));
  const uint8_t node = NodeOf(request.name);
  return Send({.request = std::move(request), .node = node}, waits);
}

Status RedisClient::Send(Flying one, const Waits& waits) {
  Node& node = *nodes_[one.node];
  Status sent = Reach(node, waits);
  if (!sent) return Closed(std::move(sent).error());
  const StoreRequest& request = one.request;
  const std::string ttl = std::to_string(request.ttl_s);
  const auto add = [&](std::initializer_list<std::string_view> words) {
    if (one.asks) AppendCommand(node.unsent, {"ASKING"});
    AppendCommand(node.unsent, words);
  };
  switch (request.what) {
    case What::kGet:
      add({"GET", request.name});
      if (request.ttl_s > 0) add({"EXPIRE", request.name, ttl});
      break;
    case What::kPeek:
      add({"GETRANGE", request.name, "0", std::to_string(request.into.size() - 1)});
      break;
    case What::kFind:
      add({"EXISTS", request.name});
      break;
    case What::kRemove:
      add({"UNLINK", request.name});
      break;
    case What::kPut:
    case What::kPutNew: {
      const bool is_new = request.what == What::kPutNew, ends = !is_new && request.ttl_s > 0;
      if (one.asks) AppendCommand(node.unsent, {"ASKING"});
      node.unsent += fmt::format("*{}\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n",
                                 is_new ? 4
                                 : ends ? 5
                                        : 3,
                                 request.name.size(), request.name, request.value.size());
      const std::array<std::span<const std::byte>, 2> pieces{std::as_bytes(std::span(node.unsent)),
                                                             request.value};
      sent = node.connection.Send(pieces, waits);
      node.unsent = "\r\n";
      if (is_new) node.unsent += "$2\r\nNX\r\n";
      if (ends) node.unsent += fmt::format("$2\r\nEX\r\n${}\r\n{}\r\n", ttl.size(), ttl);
      break;
    }
  }
  if (sent && node.unsent.size() > kMostUnsent) sent = SendUnsent(node, waits);
  if (!sent) return Closed(std::move(sent).error());
  flying_.push_back(std::move(one));
  return {};
}

Status RedisClient::SendUnsent(Node& node, const Waits& waits) {
  if (node.unsent.empty()) return {};
  Status sent = node.connection.Send(node.unsent, waits);
  node.unsent.clear();
  return sent;
}

// Reads replies in the order in which requests were started: so has each node.
Result<StoreReply> RedisClient::Next(const Waits& waits) {
  for (;;) {
    if (!is_open_) return Fail(Code::kIoError, "the connection is closed");
    KV_CHECK(!flying_.empty());
    for (const auto& node : nodes_) {
      if (Status sent = SendUnsent(*node, waits); !sent) return Closed(std::move(sent).error());
    }
    Flying one = std::move(flying_.front());
    flying_.pop_front();
    auto reply = ReadReply(one, waits);
    if (!reply) return Closed(std::move(reply).error());
    if (!reply->is_refused()) return reply;
    KV_ASSIGN(const bool is_on_its_way, SendOn(std::move(one), *reply, waits));
    if (!is_on_its_way) return reply;
  }
}

Result<StoreReply> RedisClient::ReadReply(const Flying& one, const Waits& waits) {
  using Kind = RedisReply::Kind;
  RedisConnection& connection = nodes_[one.node]->connection;
  const StoreRequest& request = one.request;
  const auto wrong = [&]() -> Result<StoreReply> {
    connection.Close();
    return Fail(Code::kCorruption, "what the store sent is not a reply to this command");
  };
  if (one.asks) KV_TRY(connection.Read({}, waits));
  KV_ASSIGN(const RedisReply reply, connection.Read(request.into, waits));
  if (reply.kind == Kind::kError) {
    const bool is_foreign = (request.what == What::kPeek || request.what == What::kGet) &&
                            reply.text.starts_with("WRONGTYPE");
    StoreReply refused = Refused(request.id, reply.text);
    if (is_foreign) refused = {.id = request.id, .outcome = Outcome::kForeign};
    if (request.what != What::kGet || request.ttl_s == 0) return refused;
    if (one.asks) KV_TRY(connection.Read({}, waits));
    KV_TRY(connection.Read({}, waits));
    return refused;
  }
  StoreReply answer{.id = request.id};
  const auto number = static_cast<uint64_t>(reply.number);
  switch (request.what) {
    case What::kGet:
      answer.outcome = reply.kind == Kind::kBulk  ? Outcome::kDone
                       : reply.kind == Kind::kNil ? Outcome::kNot
                                                  : Outcome::kForeign;
      answer.bytes = reply.kind == Kind::kBulk ? number : 0;
      if (request.ttl_s == 0) break;
      if (one.asks) KV_TRY(connection.Read({}, waits));
      KV_TRY(connection.Read({}, waits));
      break;
    case What::kPeek:
      if (reply.kind != Kind::kBulk) return wrong();
      answer.outcome = number > 0 ? Outcome::kDone : Outcome::kNot;
      answer.bytes = number;
      break;
    case What::kFind:
      answer.outcome = reply.kind == Kind::kInteger && reply.number > 0 ? Outcome::kDone  //
                                                                        : Outcome::kNot;
      break;
    case What::kRemove:
      if (reply.kind != Kind::kInteger || reply.number < 0) return wrong();
      answer.outcome = number > 0 ? Outcome::kDone : Outcome::kNot;
      break;
    case What::kPut:
    case What::kPutNew:
      if (reply.is_ok()) break;
      if (reply.kind != Kind::kNil) return wrong();
      answer.outcome = Outcome::kNot;
      break;
  }
  return answer;
}

}  // namespace kvasir
