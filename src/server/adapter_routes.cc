#include "server/adapter_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/adapter_fields.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/refusals.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json CardJson(const AdapterCard& card, bool shows_path) {
  json entry = {{"id", card.id},         {"name", card.name}, {"scale", card.scale},
                {"digest", card.digest}, {"rank", card.rank}, {"bytes", card.bytes}};
  if (shows_path) entry["path"] = card.path;
  return entry;
}

// Tells whether `path` is `folder` or in it. Both are canonical.
bool IsWithin(const fs::path& path, const fs::path& folder) {
  const auto [in_path, in_folder] = std::ranges::mismatch(path, folder);
  return in_folder == folder.end();
}

// Returns the adapter's path with its links resolved. kPermissionDenied (lora_path): it, or a file
// of its folder, is outside `dir`.
Result<fs::path> PathWithin(const std::string& dir, const std::string& given) {
  std::error_code error;
  const fs::path folder = fs::canonical(dir, error);
  if (error) {
    return FailField(Code::kPermissionDenied, "lora_path",
                     "the folder of --lora-dir cannot be read: {}", error.message());
  }
  const fs::path path = fs::weakly_canonical(folder / given, error);
  bool is_within = !error && path != folder && IsWithin(path, folder);
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    const fs::path inner = fs::weakly_canonical(path / file, error);
    is_within = is_within && !error && IsWithin(inner, folder);
  }
  if (!is_within) {
    return FailField(Code::kPermissionDenied, "lora_path",
                     "is outside the folder of --lora-dir; give a path in it");
  }
  if (fs::exists(path, error)) return path;
  return FailField(Code::kNotFound, "lora_path", "does not exist in the folder of --lora-dir");
}

class AdapterHandlers {
 public:
  explicit AdapterHandlers(const KeyRing& keys) : keys_(keys) {}
  ~AdapterHandlers() {
    const MutexLock lock(mutex_);
    if (loader_.joinable()) loader_.join();
  }

  Outcome List(const Call& call) const;
  Outcome SetScales(const Call& call) const;
  Outcome Load(const Call& call);
  Outcome Unload(const Call& call) const;

 private:
  // Reads an adapter on a thread for that alone: it may take a second. --lora-memory counts its
  // memory before its numbers are read.
  Outcome LoadLater(Engine& engine, AdapterSource source, Engine::AdapterNames names,
                    std::vector<std::string> ignored);

  const KeyRing& keys_;
  std::atomic<bool> loads_{false};  // acquired by the call that begins a load, released at its end
  Mutex mutex_;                     // of the call that begins a load
  std::thread loader_ KV_GUARDED_BY(mutex_);
};

// Turns an error of Engine::LoadAdapter into one of the body's fields.
Error LoadError(Error error) {
  if (error.code == Code::kModelChanged) {
    error = {Code::kInvalidArgument, "the adapter's files changed while they were read; try again"};
  }
  if (error.code == Code::kCorruption || error.code == Code::kNotFound) {
    error.code = Code::kInvalidArgument;
  }
  if (error.code == Code::kExhausted) error.code = Code::kUnavailable;  // the system's memory
  if (!error.field) error.field = "lora_path";
  return error;
}

// Adds the names of fields that were not read, if there are some.
json WithIgnored(json answer, const std::vector<std::string>& ignored) {
  if (!ignored.empty()) answer["ignored"] = ignored;
  return answer;
}

Outcome AdapterHandlers::List(const Call& call) const {
  const bool shows_path = !CheckAdmin(*keys_.current(), "path", call.caller);
  json list = json::array();
  for (const AdapterCard& card : call.engine.Adapters()) {
    list.push_back(CardJson(card, shows_path));
  }
  return JsonResponse(list);
}

// Sets the scales. The body is a list, as llama.cpp's server takes it.
Outcome AdapterHandlers::SetScales(const Call& call) const {
  const std::string text = fmt::format("{{\"lora\":{}}}", call.request.body);
  const auto body = ParseBody(text);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  const auto choices = ReadAdapterChoices(fields, "lora");
  if (fields.error()) return ErrorResponse(*fields.error());
  if (!choices || body->fields.size() != 1) {
    return ErrorResponse(
        {Code::kInvalidArgument, "the body is not a list of objects with id and scale", "lora"});
  }
  if (const Status set = call.engine.SetAdapterScales(*choices); !set) {
    return ErrorResponse(set.error());
  }
  return JsonResponse(WithIgnored({{"success", true}}, fields.Unread()));
}

Outcome AdapterHandlers::Load(const Call& call) {
  const auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::string name, path;
  bool replaces = false;
  fields.String("lora_name", &name);
  fields.String("lora_path", &path);
  fields.Bool("load_inplace", &replaces);
  if (name.empty()) fields.Fail("lora_name", "is missing; give the adapter's name");
  if (path.find('\0') != path.npos) fields.Fail("lora_path", "has a character U+0000");
  if (path.empty()) fields.Fail("lora_path", "is missing; give a path in the folder of --lora-dir");
  if (fields.error()) return ErrorResponse(*fields.error());
  if (!call.options.lora_dir) {
    return ErrorResponse({Code::kPermissionDenied,
                          "the server loads no adapters; start it with --lora-dir DIR",
                          "lora_path"});
  }
  for (const std::string& taken : call.model.names) {
    if (taken != name) continue;
    return ErrorResponse({Code::kInvalidArgument,
                          fmt::format("'{}' is a name of the model; give another one", name),
                          "lora_name"});
  }
  auto within = PathWithin(*call.options.lora_dir, path);
  if (!within) return ErrorResponse(within.error());
  return LoadLater(call.engine, {.path = within->string(), .name = std::move(name), .scale = 0},
                   replaces ? Engine::AdapterNames::kMayReplace : Engine::AdapterNames::kMustBeNew,
                   fields.Unread());
}

Outcome AdapterHandlers::LoadLater(Engine& engine, AdapterSource source, Engine::AdapterNames names,
                                   std::vector<std::string> ignored) {
  return LaterAnswer{[this, &engine, source = std::move(source), names,
                      ignored = std::move(ignored)](const LaterAnswer::Reply& reply) {
    const MutexLock lock(mutex_);
    if (loads_.exchange(true, std::memory_order_acquire)) {
      return reply(ErrorResponse(
          {Code::kUnavailable, "another adapter is being loaded; try again when it is"}));
    }
    if (loader_.joinable()) loader_.join();
    const auto load = [this, &engine, source, names, ignored, reply] {
      HttpResponse response;
      try {
        auto card = engine.LoadAdapter(source, names);
        response = card ? JsonResponse(WithIgnored(CardJson(*card, true), ignored))
                        : ErrorResponse(LoadError(std::move(card.error())));
      } catch (const std::bad_alloc&) {
        response = ErrorResponse({Code::kUnavailable, "the system is out of memory; try again"});
      }
      loads_.store(false, std::memory_order_release);
      reply(std::move(response));
    };
    auto started = StartThread("adapter", load);
    if (started) {
      loader_ = std::move(*started);
      return;
    }
    loads_.store(false, std::memory_order_release);
    reply(ErrorResponse(started.error()));
  }};
}

Outcome AdapterHandlers::Unload(const Call& call) const {
  const auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::string name;
  fields.String("lora_name", &name);
  if (name.empty()) fields.Fail("lora_name", "is missing; give the adapter's name");
  if (fields.error()) return ErrorResponse(*fields.error());
  if (!call.options.lora_dir) {
    return ErrorResponse({Code::kPermissionDenied,
                          "the server unloads no adapters; start it with --lora-dir DIR",
                          "lora_name"});
  }
  if (const Status gone = call.engine.UnloadAdapter(name); !gone) {
    return ErrorResponse(gone.error());
  }
  return JsonResponse(WithIgnored({{"success", true}, {"name", name}}, fields.Unread()));
}

}  // namespace

void AddAdapterRoutes(const KeyRing& keys, RouteTable* table) {
  const auto own = std::make_shared<AdapterHandlers>(keys);
  table->Add({.path = "/lora-adapters",
              .method = "GET",
              .handler = std::bind_front(&AdapterHandlers::List, own),
              .description = {.summary = "The adapters that are loaded.", .answer = "Answers"}});
  table->Add({.path = "/lora-adapters",
              .method = "POST",
              .handler = std::bind_front(&AdapterHandlers::SetScales, own),
              .access = Access::kSums,
              .description = {.summary = "Sets the scales of requests that say nothing of "
                                         "adapters.",
                              .properties = JoinedFields(
                                  {R"("id":{"type":"integer","minimum":0})", AdapterScaleSchema()}),
                              .required = R"(["id","scale"])",
                              .takes_list = true}});
  table->Add({.path = "/v1/load_lora_adapter",
              .method = "POST",
              .handler = std::bind_front(&AdapterHandlers::Load, own),
              .access = Access::kSums,
              .description = {.summary = "Loads an adapter from the folder of --lora-dir.",
                              .properties = R"("lora_name":{"type":"string"},
                                  "lora_path":{"type":"string"},
                                  "load_inplace":{"type":"boolean"})",
                              .required = R"(["lora_name","lora_path"])"}});
  table->Add({.path = "/v1/unload_lora_adapter",
              .method = "POST",
              .handler = std::bind_front(&AdapterHandlers::Unload, own),
              .access = Access::kSums,
              .description = {.summary = "Unloads an adapter; requests under way keep it.",
                              .properties = R"("lora_name":{"type":"string"})",
                              .required = R"(["lora_name"])"}});
}

}  // namespace kvasir
