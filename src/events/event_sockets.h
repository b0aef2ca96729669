// EventSockets: the sockets by which routers get KV events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "events/event_payload.h"
#include "events/zmq_library.h"
#include "kvasir/kv_events.h"
#include "kvasir/status.h"

namespace kvasir {

// kInvalidArgument naming the flag: an address that is neither tcp://HOST:PORT nor ipc://PATH.
Status CheckEventAddress(const std::string& flag, std::string_view address);

// An XPUB socket, and a ROUTER socket for replays. Messages are frames: topic, sequence (8 bytes,
// big-endian), payload; of a replay the client's id and an empty frame stand before them. No call
// waits for a peer: what a subscriber does not take in time is dropped for it alone. A peer that
// answers nothing for half a minute is disconnected. Its end frees all that waits for sockets.
// One thread at a time.
class EventSockets {
 public:
  // kIoError: libzmq is not installed, or an address cannot be used. REQUIRES: CheckEventAddress
  // takes them.
  static Result<std::unique_ptr<EventSockets>> Open(const KvEventsOptions& options);
  ~EventSockets();
  EventSockets(const EventSockets&) = delete;
  EventSockets& operator=(const EventSockets&) = delete;

  // Returns the addresses, with the port that the system chose for '*'.
  const std::string& address() const { return address_; }
  const std::optional<std::string>& replay_address() const { return replay_address_; }

  // Waits until something came, `fd` can be read or the time is over; < 0: without an end.
  void Wait(int fd, int timeout_ms);
  // Takes what subscribers said. Returns whether one has subscribed to the topic.
  bool TakeSubscriptions();
  // Takes the next question for batches from a sequence on. Malformed ones are passed over.
  struct Question {
    std::string client;
    uint64_t sequence;
  };
  std::optional<Question> TakeQuestion();

  void Publish(const EventBatch& batch);
  void Replay(const std::string& client, const EventBatch& batch);
  void EndReplay(const std::string& client);

 private:
  EventSockets(const ZmqLibrary& zmq, std::string topic);
  Result<void*> Bind(int type, const std::string& flag, std::string* address);
  std::vector<std::string> Receive(void* socket);  // empty: nothing came
  bool SendText(void* socket, std::string_view text, int flags);
  void SendBatch(void* socket, uint64_t sequence, const EventBatch* batch);

  const ZmqLibrary& zmq_;
  const std::string topic_;
  void* const context_;
  void* publisher_ = nullptr;
  void* router_ = nullptr;  // nullptr: there are no replays
  std::string address_;
  std::optional<std::string> replay_address_;
};

}  // namespace kvasir
