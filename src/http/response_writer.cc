#include "http/response_writer.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr size_t kWholeBytes = 16 << 10;  // of a body; a longer one is sent in chunks

}  // namespace

void ResponseWriter::Gather(HttpResponse* response) {
  while (response->rest && response->body.size() < kWholeBytes) {
    const std::string part = response->rest.Next();
    response->body += part;
    if (part.empty()) response->rest = Parts();
  }
}

void ResponseWriter::Put(std::string head, HttpResponse response) {
  for (const auto& [name, value] : response.headers) {
    head += fmt::format("{}: {}\r\n", name, value);
  }
  unsent_ += head;
  unsent_ += response.rest ? ChunkedHeader(request_.version)
                           : fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
  ended_ = request_.is_head || !response.rest;
  if (request_.is_head) return;
  unsent_ += response.rest ? ChunkText(response.body, request_.version) : response.body;
  parts_ = std::move(response.rest);
}

void ResponseWriter::PutStreamHead(const std::string& head) {
  unsent_ += head + "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" +
             ChunkedHeader(request_.version);
}

void ResponseWriter::PutStreamText(const std::string& text) {
  unsent_ += ChunkText(text, request_.version);
}

void ResponseWriter::PutStreamEnd() {
  unsent_ += LastChunkText(request_.version);
  ended_ = true;
}

void ResponseWriter::Write(Done done) {
  KV_CHECK(!writing_);
  writing_ = true;
  std::swap(in_flight_, unsent_);
  stream_.Write(boost::asio::buffer(in_flight_),
                [this, done = std::move(done)](boost::system::error_code ec, size_t) {
                  writing_ = false;
                  OPENSSL_cleanse(in_flight_.data(), in_flight_.size());
                  in_flight_.clear();
                  if (in_flight_.capacity() > kWholeBytes) in_flight_.shrink_to_fit();
                  done(ec);
                });
}

bool ResponseWriter::Advance() {
  if (!unsent_.empty()) return true;
  if (!parts_) return false;
  const std::string part = parts_.Next();
  if (!part.empty()) {
    unsent_ = ChunkText(part, request_.version);
  } else {
    parts_ = Parts();
    PutStreamEnd();
  }
  return true;
}

}  // namespace kvasir
