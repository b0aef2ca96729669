#include "events/event_sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "base/sizes.h"
#include "events/event_stream.h"

namespace kvasir {
namespace {

// Batches that may wait for a subscriber; a replay may be of all that are kept, and its end.
constexpr int kMostWaiting = 256, kMostReplayed = static_cast<int>(EventStream::kMostKept) + 1;
constexpr int64_t kMostReceivedBytes = 256;  // of a subscription or a question
constexpr int kHeartbeatMs = 10'000, kHeartbeatTimeoutMs = 30'000;
constexpr size_t kSequenceBytes = 8;
constexpr uint64_t kMostPort = 65535;  // libzmq takes larger ones modulo 65536
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

std::array<char, kSequenceBytes> BytesOfSequence(uint64_t sequence) {
  std::array<char, kSequenceBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(sequence >> (8 * (bytes.size() - 1 - i)));
  }
  return bytes;
}

}  // namespace

Status CheckEventAddress(const std::string& flag, std::string_view address) {
  if (address.starts_with("ipc://") && address.size() > 6) return {};
  const size_t colon = address.rfind(':');
  if (address.starts_with("tcp://") && colon > 6 && colon + 1 < address.size()) {
    const std::string port(address.substr(colon + 1));
    const auto number = ParseUint(port);
    if (port == "*" || (number && *number <= kMostPort)) return {};
    return FailField(Code::kInvalidArgument, flag,
                     "'{}' has the port '{}'; give a number up to {}, or *: the system chooses one",
                     address, port, kMostPort);
  }
  return FailField(Code::kInvalidArgument, flag,
                   "'{}' cannot be read; give tcp://HOST:PORT, such as tcp://127.0.0.1:5557, or "
                   "ipc://PATH",
                   address);
}

EventSockets::EventSockets(const ZmqLibrary& zmq, std::string topic)
    : zmq_(zmq), topic_(std::move(topic)), context_(zmq.ctx_new()) {
  KV_CHECK(context_ != nullptr);
}

EventSockets::~EventSockets() {
  for (void* socket : {publisher_, router_}) {
    if (socket != nullptr) zmq_.close(socket);
  }
  // Waits for libzmq's thread; nothing lingers. A signal may end the wait.
  while (zmq_.ctx_term(context_) != 0 && zmq_.error() == EINTR) {
  }
}

Result<std::unique_ptr<EventSockets>> EventSockets::Open(const KvEventsOptions& options) {
  KV_ASSIGN(const ZmqLibrary* zmq, LoadZmq());
  std::unique_ptr<EventSockets> sockets(new EventSockets(*zmq, options.topic));
  sockets->address_ = options.address;
  KV_ASSIGN(sockets->publisher_, sockets->Bind(kZmqXpub, "kv_events", &sockets->address_));
  if (options.replay_address) {
    sockets->replay_address_ = options.replay_address;
    KV_ASSIGN(sockets->router_,
              sockets->Bind(kZmqRouter, "kv_events_replay", &*sockets->replay_address_));
  }
  return sockets;
}

// Makes a socket and binds it; the address is then the one that clients connect to.
Result<void*> EventSockets::Bind(int type, const std::string& flag, std::string* address) {
  void* const socket = zmq_.socket(context_, type);
  if (socket == nullptr) {
    return Fail(Code::kIoError, "--kv-events: libzmq makes no socket: {}",
                zmq_.error_text(zmq_.error()));
  }
  const auto set = [&](int option, auto value) {
    return zmq_.setsockopt(socket, option, &value, sizeof(value)) == 0;
  };
  const bool is_set = set(kZmqLinger, 0) && set(kZmqMaxMsgSize, kMostReceivedBytes) &&
                      set(kZmqHeartbeatIvl, kHeartbeatMs) &&
                      set(kZmqHeartbeatTimeout, kHeartbeatTimeoutMs) &&
                      set(kZmqSndHwm, type == kZmqXpub ? kMostWaiting : kMostReplayed) &&
                      (type != kZmqXpub || set(kZmqXpubVerbose, 1)) &&
                      (address->find('[') == std::string::npos || set(kZmqIpv6, 1));
  if (!is_set || zmq_.bind(socket, address->c_str()) != 0) {
    const std::string why = zmq_.error() == ENODEV ? "this machine has no address of that name"
                                                   : zmq_.error_text(zmq_.error());
    zmq_.close(socket);
    return FailField(Code::kIoError, flag, "{} cannot be used: {}", *address, why);
  }
  std::array<char, 256> bound{};
  size_t size = bound.size();
  if (zmq_.getsockopt(socket, kZmqLastEndpoint, bound.data(), &size) == 0) *address = bound.data();
  return socket;
}

void EventSockets::Wait(int fd, int timeout_ms) {
  std::array<zmq_pollitem_t, 3> items{
      {{nullptr, fd, kZmqPollIn, 0}, {publisher_, 0, kZmqPollIn, 0}, {router_, 0, kZmqPollIn, 0}}};
  (void)zmq_.poll(items.data(), router_ == nullptr ? 2 : 3, timeout_ms);  // a signal ends it too
}

std::vector<std::string> EventSockets::Receive(void* socket) {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    zmq_msg_t message;
    zmq_.msg_init(&message);
    if (zmq_.msg_recv(&message, socket, kZmqDontWait) < 0) {
      zmq_.msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(zmq_.msg_data(&message)), zmq_.msg_size(&message));
    zmq_.msg_close(&message);
    size_t size = sizeof(more);
    if (zmq_.getsockopt(socket, kZmqRcvMore, &more, &size) != 0) more = 0;
  }
  return frames;
}

bool EventSockets::TakeSubscriptions() {
  bool is_new = false;
  for (;;) {
    const std::vector<std::string> frames = Receive(publisher_);
    if (frames.empty()) return is_new;
    // 1 and the beginning of a topic subscribes, 0 ends that.
    is_new |= frames.size() == 1 && frames[0].starts_with('\1') &&
              topic_.starts_with(std::string_view(frames[0]).substr(1));
  }
}

std::optional<EventSockets::Question> EventSockets::TakeQuestion() {
  while (router_ != nullptr) {
    const std::vector<std::string> frames = Receive(router_);
    if (frames.empty()) return std::nullopt;
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != kSequenceBytes) continue;
    uint64_t sequence = 0;
    for (const char byte : frames[2]) sequence = sequence << 8 | static_cast<uint8_t>(byte);
    return Question{frames[0], sequence};
  }
  return std::nullopt;
}

void EventSockets::Publish(const EventBatch& batch) {
  SendBatch(publisher_, batch.sequence, &batch);
}

void EventSockets::Replay(const std::string& client, const EventBatch& batch) {
  if (!SendText(router_, client, kZmqSendMore) || !SendText(router_, "", kZmqSendMore)) return;
  SendBatch(router_, batch.sequence, &batch);
}

void EventSockets::EndReplay(const std::string& client) {
  if (!SendText(router_, client, kZmqSendMore) || !SendText(router_, "", kZmqSendMore)) return;
  SendBatch(router_, kEndOfReplay, nullptr);
}

bool EventSockets::SendText(void* socket, std::string_view text, int flags) {
  return zmq_.send(socket, text.data(), text.size(), flags | kZmqDontWait) >= 0;
}

// `batch`: nullptr sends an empty payload. Bytes are not copied: the message owns a share of them.
void EventSockets::SendBatch(void* socket, uint64_t sequence, const EventBatch* batch) {
  const auto bytes = BytesOfSequence(sequence);
  if (!SendText(socket, topic_, kZmqSendMore) ||
      !SendText(socket, {bytes.data(), bytes.size()}, kZmqSendMore)) {
    return;
  }
  if (batch == nullptr) {
    SendText(socket, "", 0);
    return;
  }
  using Share = std::shared_ptr<const EventPayload>;
  auto share = std::make_unique<Share>(batch->payload);
  const std::span<const std::byte> payload = batch->payload->bytes();
  zmq_msg_t message;
  const auto free = [](void*, void* hint) { delete static_cast<Share*>(hint); };
  if (zmq_.msg_init_data(&message, const_cast<std::byte*>(payload.data()), payload.size(), free,
                         share.get()) != 0) {
    SendText(socket, "", 0);
    return;
  }
  (void)share.release();  // the message's
  if (zmq_.msg_send(&message, socket, kZmqDontWait) < 0) zmq_.msg_close(&message);
}

}  // namespace kvasir
