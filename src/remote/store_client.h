// StoreClient: what a thread of a remote tier asks of a fleet's store, of whatever kind that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "remote/host_lookup.h"

namespace kvasir {

struct RemoteTierOptions;

// Returns what a store says, which may be anything, as text that goes on after it, for a log and a
// terminal: ASCII that is printable, '?' for the rest, at most 200 characters, without a full stop
// or the like at its end.
std::string StoreWords(std::string_view text);

struct StoreRequest {
  enum class What : uint8_t {
    kGet,     // the whole value
    kPeek,    // its first bytes, as many as `into` has
    kFind,    // whether there is one
    kPut,     // in the place of another one
    kPutNew,  // where there is none
    kRemove,
  };
  What what = What::kGet;
  uint64_t id = 0;  // of the reply
  std::string name = {};
  std::span<std::byte> into = {};         // of kGet and kPeek
  std::span<const std::byte> value = {};  // of kPut and kPutNew
  // How long a value of kPut stays, or, from now on, one of kGet; 0: without an end, or as before.
  // A store where values have another lifetime ignores it.
  uint64_t ttl_s = 0;
};

struct StoreReply {
  enum class Outcome : uint8_t {
    kDone,     // it was there, is written, or was removed
    kNot,      // it is not there; of kPutNew: there is one already
    kForeign,  // the name has something else than a value
    kRefused,  // see `words`
  };
  uint64_t id = 0;
  Outcome outcome = Outcome::kDone;
  bool is_passing = false;  // of kRefused: a fault of this request, as SlowDown of S3
  uint64_t bytes = 0;       // that a kGet or kPeek put into `into`
  std::string words = {};   // of the store, where it refuses

  bool is_done() const { return outcome == Outcome::kDone; }
  bool is_refused() const { return outcome == Outcome::kRefused; }
};

// Some of the names below another one.
struct StorePage {
  std::vector<std::string> names;  // at most StoreClient::kPageNames
  std::string next;                // where the next page begins; "": this is the last one
};

// One thread. It allocates nothing that a store announces. Where a call fails, all requests that
// were started have come to nothing, and the client is closed: kIoError; kCorruption: what came is
// not what this kind of store sends; kCancelled: `waits` gave up.
class StoreClient {
 public:
  // Called while a call waits for the store, at least each kWaitsNs; never where what it waits for
  // has come already. False: it gives up.
  using Waits = std::function<bool()>;
  static constexpr uint64_t kWaitsNs = 20'000'000;
  static constexpr size_t kPageNames = 2048;

  // Makes the client of the address's kind. kIoError: a library that it needs is missing.
  static Result<std::unique_ptr<StoreClient>> Create(const RemoteTierOptions& options);
  // Returns the memory that a client takes beyond what its caller gives it, at most.
  static uint64_t BytesFor(const RemoteTierOptions& options);

  virtual ~StoreClient() = default;
  // Connects to the first of the host's addresses that answers, and says who we are.
  // kPermissionDenied: the store refuses user or password, with its words.
  virtual Status Open(const SocketAddresses& at, const Waits& waits) = 0;
  virtual bool is_open() const = 0;
  // Ends all requests that were started.
  virtual void Close() = 0;
  // Closes it where the other side has ended it, or sent what was not asked for. REQUIRES: no
  // request is started.
  virtual void CloseStale() = 0;

  // Asks the least that the store answers. kUnavailable: it refuses, with its words. REQUIRES: no
  // request is started.
  virtual Status Ping(const Waits& waits) = 0;
  // Starts a request. What it names must stay until Next has returned its reply, or the client is
  // closed.
  virtual Status Start(StoreRequest request, const Waits& waits) = 0;
  // Returns the reply to one that was started; the order is any. REQUIRES: there is one.
  virtual Result<StoreReply> Next(const Waits& waits) = 0;

  // Asks as kPeek does, and remembers what came. REQUIRES: no request is started, as for the next
  // two.
  virtual Result<StoreReply> Watch(const std::string& name, std::span<std::byte> into,
                                   const Waits& waits) = 0;
  // Writes a value, without an end, if what Watch saw is still there; false: it is not.
  // kUnavailable: the store refuses.
  virtual Result<bool> Replace(const std::string& name, std::span<const std::byte> value,
                               const Waits& waits) = 0;
  // Forgets what Watch saw.
  virtual Status Unwatch(const Waits& waits) = 0;

  // Returns names that begin with `below`: from the beginning where `page` is "", else where the
  // page before said. One that is there all the time is in one of them, unless the store moves it
  // meanwhile. kUnavailable: the store refuses. REQUIRES: no request is started.
  virtual Result<StorePage> List(const std::string& below, const std::string& page,
                                 const Waits& waits) = 0;

  // Starts a request and returns its reply. REQUIRES: no request is started.
  Result<StoreReply> Ask(StoreRequest request, const Waits& waits);
};

}  // namespace kvasir
