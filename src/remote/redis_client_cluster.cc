// RedisClient: nodes of a cluster, names that are watched or listed.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/result.h"
#include "remote/redis_client.h"

namespace kvasir {
namespace {

// Redirections of a request; in a row, of Watch. After a slot has moved, nodes send requests to and
// fro until each has heard of it: those after the first few wait a little.
constexpr uint8_t kMostMoves = 20, kQuickMoves = 4;
constexpr std::chrono::milliseconds kMoveWait{10};
constexpr int64_t kMostNames = 100'000;        // of a page of SCAN, which asks for 1,000
constexpr uint32_t kMostRounds = 3;            // of SCAN over all masters
constexpr uint64_t kMovingNs = 2'000'000'000;  // how long Watch waits for a slot on its way

}  // namespace

Result<uint8_t> RedisClient::Follow(const RedisRedirect& redirect, uint8_t from) {
  if (!is_cluster()) {
    slots_ = std::make_unique<RedisSlots>();
    slots_->nodes.push_back(nodes_[0]->at);
  }
  RedisNode to = redirect.to;
  if (to.host.empty()) to.host = nodes_[from]->at.host;
  const std::optional<uint8_t> number = slots_->NumberOf(to);
  if (!number) {
    return Closed({Code::kUnavailable,
                   fmt::format("the cluster has over {} masters", RedisSlots::kMostNodes)});
  }
  if (*number == nodes_.size()) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->at = to;
  }
  if (redirect.is_ask) return *number;
  slots_->node_of[redirect.slot] = *number;
  wants_map_ = true;
  ++changes_;
  return *number;
}

Result<bool> RedisClient::SendOn(Flying one, const StoreReply& reply, const Waits& waits) {
  const std::optional<RedisRedirect> redirect = ParseRedirect(reply.words);
  if (!redirect || one.moves >= kMostMoves) return false;
  if (one.moves >= kQuickMoves) std::this_thread::sleep_for(kMoveWait);
  if (!waits()) return Closed({Code::kCancelled, "the store takes too long"});
  KV_ASSIGN(one.node, Follow(*redirect, one.node));
  one.asks = redirect->is_ask;
  ++one.moves;
  KV_TRY(Send(std::move(one), waits));
  return true;
}

Status RedisClient::ReadMap(const Waits& waits) {
  KV_CHECK(flying_.empty());
  wants_map_ = false;
  Node& asked = AnyNode();
  if (Status reached = Reach(asked, waits); !reached) return Closed(std::move(reached).error());
  Result<RedisSlots> slots = ReadSlots(asked.connection, asked.at, waits);
  if (slots) {
    TakeMap(std::move(*slots));
  } else if (!asked.connection.is_open()) {
    return Closed(std::move(slots).error());
  }
  return {};
}

void RedisClient::TakeMap(RedisSlots slots) {
  if (is_cluster() && slots.nodes == slots_->nodes && slots.node_of == slots_->node_of) return;
  std::vector<std::unique_ptr<Node>> nodes;
  for (const RedisNode& at : slots.nodes) {
    const auto known =
        std::ranges::find_if(nodes_, [&](const auto& node) { return node && node->at == at; });
    nodes.push_back(known != nodes_.end() ? std::move(*known) : std::make_unique<Node>());
    nodes.back()->at = at;
  }
  nodes_ = std::move(nodes);
  slots_ = std::make_unique<RedisSlots>(std::move(slots));
  ++changes_;
}

Result<StoreReply> RedisClient::Watch(const std::string& name, std::span<std::byte> into,
                                      const Waits& waits) {
  const uint64_t end_ns = MonotonicNs() + kMovingNs;
  for (uint8_t moves = 0;;) {
    if (!is_open_) return Fail(Code::kIoError, "the connection is closed");
    if (wants_map_) KV_TRY(ReadMap(waits));
    const uint8_t number = NodeOf(name);
    Node& node = *nodes_[number];
    if (Status reached = Reach(node, waits); !reached) return Closed(std::move(reached).error());
    AppendCommand(node.unsent, {"WATCH", name});
    const Flying peek{.request = {.what = StoreRequest::What::kPeek, .name = name, .into = into},
                      .node = number};
    AppendCommand(node.unsent, {"GETRANGE", name, "0", std::to_string(into.size() - 1)});
    if (Status sent = SendUnsent(node, waits); !sent) return Closed(std::move(sent).error());
    auto watched = node.connection.Read({}, waits);
    if (!watched) return Closed(std::move(watched).error());
    const bool watches = watched->is_ok();
    const bool is_refused = watched->kind == RedisReply::Kind::kError;
    const std::string words(is_refused ? watched->text
                                       : "what the store sent is not a reply of Redis");
    auto reply = ReadReply(peek, waits);
    if (!reply) return Closed(std::move(reply).error());
    if (!watches) *reply = {.outcome = StoreReply::Outcome::kRefused, .words = words};
    watched_ = number;
    if (!reply->is_refused()) return reply;
    if (watches) KV_TRY(Unwatch(waits));
    const std::optional<RedisRedirect> redirect = ParseRedirect(reply->words);
    if (!redirect || moves == kMostMoves || MonotonicNs() > end_ns) return reply;
    // A transaction cannot follow a slot that is on its way: it waits until that has arrived.
    if (redirect->is_ask) {
      moves = 0;
      std::this_thread::sleep_for(kMoveWait);
      if (!waits()) return Closed({Code::kCancelled, "the store takes too long"});
    } else {
      if (moves >= kQuickMoves) std::this_thread::sleep_for(kMoveWait);
      KV_TRY(Follow(*redirect, number));
      ++moves;
    }
  }
}

Result<bool> RedisClient::Replace(const std::string& name, std::span<const std::byte> value,
                                  const Waits& waits) {
  KV_CHECK(watched_);
  RedisConnection& connection = nodes_[*std::exchange(watched_, std::nullopt)]->connection;
  const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  std::string text;
  AppendCommand(text, {"MULTI"});
  AppendCommand(text, {"SET", name, bytes});
  AppendCommand(text, {"EXEC"});
  if (Status sent = connection.Send(text, waits); !sent) return Closed(std::move(sent).error());
  std::string refused;
  for (int i = 0; i < 2; ++i) {
    auto queued = connection.Read({}, waits);
    if (!queued) return Closed(std::move(queued).error());
    if (queued->kind == RedisReply::Kind::kError && refused.empty()) refused = queued->text;
  }
  auto done = connection.Read({}, waits);
  if (done && done->kind == RedisReply::Kind::kArray && done->number == 1) {
    done = connection.Read({}, waits);
    if (done && done->is_ok()) return true;
  }
  if (!done) return Closed(std::move(done).error());
  if (done->kind == RedisReply::Kind::kNil) return false;
  if (done->kind == RedisReply::Kind::kError) {
    if (refused.empty()) refused = done->text;
    if (ParseRedirect(refused)) return false;  // the slot has begun to move
    return Fail(Code::kUnavailable, "{}", refused);
  }
  return Closed({Code::kCorruption, "what the store sent is not a reply to EXEC"});
}

Status RedisClient::Unwatch(const Waits& waits) {
  if (!watched_) return {};
  const uint8_t number = *std::exchange(watched_, std::nullopt);
  auto done = nodes_[number]->connection.Ask({"UNWATCH"}, {}, waits);
  if (!done) return Closed(std::move(done).error());
  return {};
}

// Asks all masters, since a node has only the names of its slots; once more if slots have moved
// meanwhile.
Result<StorePage> RedisClient::List(const std::string& below, const std::string& page,
                                    const Waits& waits) {
  if (!is_open_) return Fail(Code::kIoError, "the connection is closed");
  if (page.empty()) {
    KV_TRY(ReadMap(waits));
    scan_ = {.node = 0, .cursor = "0", .rounds = 1, .changes = changes_};
  }
  StorePage found;
  if (scan_.node < nodes_.size()) {
    Node& node = *nodes_[scan_.node];
    if (Status reached = Reach(node, waits); !reached) return Closed(std::move(reached).error());
    auto is_last = ReadPage(node, below, &found.names, waits);
    if (!is_last && !node.connection.is_open()) return Closed(std::move(is_last).error());
    if (!is_last) return tl::unexpected(std::move(is_last).error());
    if (*is_last) {
      ++scan_.node;
      scan_.cursor = "0";
    }
  }
  if (scan_.node >= nodes_.size()) {
    if (is_cluster()) KV_TRY(ReadMap(waits));
    if (scan_.changes == changes_ || scan_.rounds == kMostRounds) return found;
    scan_ = {.node = 0, .cursor = "0", .rounds = scan_.rounds + 1, .changes = changes_};
  }
  found.next = scan_.cursor;
  return found;
}

// Reads a page, which may have any number of names. One with too many is asked for again when those
// are removed.
Result<bool> RedisClient::ReadPage(Node& node, const std::string& below,
                                   std::vector<std::string>* names, const Waits& waits) {
  RedisConnection& connection = node.connection;
  const auto wrong = [&] {
    connection.Close();
    return Fail(Code::kCorruption, "what the store sent is not a reply to SCAN");
  };
  KV_ASSIGN(
      const RedisReply pair,
      connection.Ask({"SCAN", scan_.cursor, "MATCH", below + "*", "COUNT", "1000"}, {}, waits));
  if (pair.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", pair.text);
  if (pair.kind != RedisReply::Kind::kArray || pair.number != 2) return wrong();
  std::array<std::byte, 256> bytes;
  KV_ASSIGN(const std::string_view at, connection.ReadBulk(bytes, waits));
  std::string next(at);
  KV_ASSIGN(const RedisReply list, connection.Read({}, waits));
  if (list.kind != RedisReply::Kind::kArray || list.number > kMostNames) return wrong();
  for (int64_t i = 0; i < list.number; ++i) {
    KV_ASSIGN(const std::string_view name, connection.ReadBulk(bytes, waits));
    if (!name.starts_with(below)) return wrong();
    if (names->size() < kPageNames) names->emplace_back(name);
  }
  if (names->size() < static_cast<size_t>(list.number)) return false;
  scan_.cursor = std::move(next);
  return scan_.cursor == "0";
}

}  // namespace kvasir
