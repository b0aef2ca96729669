#include "events/zmq_library.h"

#include <optional>

#include "base/result.h"
#include "base/shared_library.h"

namespace kvasir {
namespace {

std::optional<ZmqLibrary> LoadAll() {
  void* const library = LoadSharedLibrary("libzmq.so.5");
  ZmqLibrary zmq;
  if (!FindFunction(library, "zmq_ctx_new", &zmq.ctx_new) ||
      !FindFunction(library, "zmq_ctx_term", &zmq.ctx_term) ||
      !FindFunction(library, "zmq_socket", &zmq.socket) ||
      !FindFunction(library, "zmq_close", &zmq.close) ||
      !FindFunction(library, "zmq_setsockopt", &zmq.setsockopt) ||
      !FindFunction(library, "zmq_getsockopt", &zmq.getsockopt) ||
      !FindFunction(library, "zmq_bind", &zmq.bind) ||
      !FindFunction(library, "zmq_send", &zmq.send) ||
      !FindFunction(library, "zmq_msg_init", &zmq.msg_init) ||
      !FindFunction(library, "zmq_msg_init_data", &zmq.msg_init_data) ||
      !FindFunction(library, "zmq_msg_send", &zmq.msg_send) ||
      !FindFunction(library, "zmq_msg_recv", &zmq.msg_recv) ||
      !FindFunction(library, "zmq_msg_close", &zmq.msg_close) ||
      !FindFunction(library, "zmq_msg_data", &zmq.msg_data) ||
      !FindFunction(library, "zmq_msg_size", &zmq.msg_size) ||
      !FindFunction(library, "zmq_poll", &zmq.poll) ||
      !FindFunction(library, "zmq_errno", &zmq.error) ||
      !FindFunction(library, "zmq_strerror", &zmq.error_text)) {
    return std::nullopt;
  }
  return zmq;
}

}  // namespace

Result<const ZmqLibrary*> LoadZmq() {
  static const std::optional<ZmqLibrary> kZmq = LoadAll();
  if (kZmq) return &*kZmq;
  return Fail(Code::kIoError,
              "--kv-events: libzmq (libzmq.so.5) cannot be loaded: install it (Debian: apt-get "
              "install libzmq5), or leave the flag out");
}

}  // namespace kvasir
