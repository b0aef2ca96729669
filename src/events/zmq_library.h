// ZmqLibrary: the functions of libzmq, loaded when they are first needed.
#pragma once

#include <cstddef>

#include "kvasir/status.h"

// libzmq's types (zmq.h of 4.x, whose ABI has not changed since 4.0). Declared here, so that no
// build needs its header, which brings 15 packages.
extern "C" {
struct zmq_msg_t {
  alignas(void*) unsigned char bytes[64];
};
struct zmq_pollitem_t {
  void* socket;
  int fd;
  short events;
  short revents;
};
}

namespace kvasir {

inline constexpr int kZmqRouter = 6, kZmqXpub = 9;                        // types of sockets
inline constexpr int kZmqDontWait = 1, kZmqSendMore = 2, kZmqPollIn = 1;  // flags
// Options of sockets.
inline constexpr int kZmqRcvMore = 13, kZmqLinger = 17, kZmqMaxMsgSize = 22, kZmqSndHwm = 23,
                     kZmqLastEndpoint = 32, kZmqXpubVerbose = 40, kZmqIpv6 = 42,
                     kZmqHeartbeatIvl = 75, kZmqHeartbeatTimeout = 77;

struct ZmqLibrary {
  void* (*ctx_new)();
  int (*ctx_term)(void* context);
  void* (*socket)(void* context, int type);
  int (*close)(void* socket);
  int (*setsockopt)(void* socket, int option, const void* value, size_t size);
  int (*getsockopt)(void* socket, int option, void* value, size_t* size);
  int (*bind)(void* socket, const char* address);
  int (*send)(void* socket, const void* bytes, size_t size, int flags);
  int (*msg_init)(zmq_msg_t* message);
  int (*msg_init_data)(zmq_msg_t* message, void* bytes, size_t size,
                       void (*free)(void* bytes, void* hint), void* hint);
  int (*msg_send)(zmq_msg_t* message, void* socket, int flags);
  int (*msg_recv)(zmq_msg_t* message, void* socket, int flags);
  int (*msg_close)(zmq_msg_t* message);
  void* (*msg_data)(zmq_msg_t* message);
  size_t (*msg_size)(const zmq_msg_t* message);
  int (*poll)(zmq_pollitem_t* items, int num_items, long timeout_ms);
  int (*error)();
  const char* (*error_text)(int error);
};

// Loads the library, for as long as the process runs. kIoError: it is not installed. Thread-safe.
Result<const ZmqLibrary*> LoadZmq();

}  // namespace kvasir
