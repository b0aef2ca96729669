// FakeEngine: an Engine without a model, for tests and the fuzzer of the server.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/parts.h"
#include "base/secret.h"
#include "chat/chat_template.h"
#include "http/errors.h"
#include "kvasir/engine.h"
#include "server/service.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace kvasir {

// Keeps the requests that it gets and generates nothing. One thread.
class FakeEngine : public Engine {
 public:
  FakeEngine(const Tokenizer* tokenizer, const ChatTemplate* chat_template)
      : tokenizer_(tokenizer), chat_template_(chat_template) {
    card_.id = "fake";
    card_.vocab_size = tokenizer ? tokenizer->vocab_size() : 100;
    card_.ctx_size = card_.max_positions = 64;
    plan_.max_tokens = 64;
  }

  Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                           IndexedSink sink) override {
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      submitted.emplace_back(std::move(requests[i]),
                             [sink, i](const Event& event) { sink(i, event); });
      ids.push_back(static_cast<RequestId>(submitted.size()));
    }
    return ids;
  }
  void Cancel(RequestId id) override { cancelled.push_back(id); }
  void Drain() override {}
  void Erase(std::string_view owner, ErasureSink done) override {
    erased.emplace_back(owner);
    if (holds_erasures) return erasing.push_back(std::move(done));
    done(erasure);
  }
  void Erase(std::string_view owner) override { erased.emplace_back(owner); }
  void Forget(ForgetRequest request, ErasureSink done) override {
    forgotten.push_back(std::move(request));
    if (holds_erasures) return erasing.push_back(std::move(done));
    done(erasure);
  }
  void ListSequences(std::optional<std::string> tenant, SequencesSink done) override {
    std::vector<SequenceState> own;
    for (const SequenceState& state : sequences) {
      if (!tenant || state.tenant == *tenant) own.push_back(state);
    }
    done(std::move(own));
  }
  void ListPrefixes(std::string owner, PrefixesSink done) override {
    prefixes_asked.push_back(std::move(owner));
    done(prefixes);
  }
  void Flush(FlushSink done) override { done(TierFlushed{}); }
  std::optional<TierStats> DiskStats() const override { return disk; }
  std::optional<RemoteStats> RemoteState() const override { return remote; }
  std::optional<uint64_t> RemoteEpochOf(std::string_view owner) const override {
    const auto found = remote_epochs.find(owner);
    return found == remote_epochs.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<ErasedElsewhere> ListErasedElsewhere() const override {
    const MutexLock lock(mutex);
    return erased_elsewhere;
  }
  void EndErasedElsewhere(const ErasedElsewhere& erased) override {
    const MutexLock lock(mutex);
    std::erase_if(erased_elsewhere, [&](const auto& one) { return one.owner == erased.owner; });
  }
  void ReserveDisk(uint64_t) override {}
  Status CheckRoom(const std::string&) const override { return room; }
  void CountRejection(RejectReason, const std::optional<std::string>&) override {}
  void CountMiss(MissReason reason, uint32_t) override { counted_misses.push_back(reason); }
  void CountVolatile(uint32_t tokens) override { counted_volatile += tokens; }
  Status SetTenants(const TenantTable& given) override {
    tenants = given;
    return {};
  }
  Result<AdapterCard> LoadAdapter(const AdapterSource& source, AdapterNames) override {
    adapters.push_back({.id = adapters.size(),
                        .name = source.name.value_or(source.path),
                        .path = source.path,
                        .is_model = source.name.has_value(),
                        .scale = source.scale});
    return adapters.back();
  }
  Status UnloadAdapter(std::string_view name) override {
    const bool is_gone = std::erase_if(adapters, [&](const auto& a) { return a.name == name; }) > 0;
    if (is_gone) return {};
    return tl::unexpected(Error{Code::kNotFound, "no such adapter"});
  }
  Status SetAdapterScales(std::span<const AdapterChoice> choices) override {
    scales.assign(choices.begin(), choices.end());
    return {};
  }
  std::vector<AdapterCard> Adapters() const override { return adapters; }
  Status ChooseAdapters(GenerateRequest& request) const override {
    if (!request.adapters) request.adapters.emplace();
    request.adapter_digest = request.adapters->empty() ? "" : "digest";
    return {};
  }
  Status CheckModel() override { return model_status; }
  uint64_t GrammarBytes() const override { return 0; }
  EngineStats Stats() const override { return stats; }
  const MemoryPlan& plan() const override { return plan_; }
  const ModelCard& card() const override { return card_; }
  const EngineOptions& options() const override { return options_; }
  EngineOptions& mutable_options() { return options_; }
  // Shows a disk tier: its folder and its secret lie under `parent`.
  void HaveDisk(const std::filesystem::path& parent) {
    const std::string state = parent / "state";
    KV_CHECK(LoadOrCreateSecret(state).has_value());
    options_.disk = DiskOptions{};
    options_.state_dir = state;
    disk = TierStats{.folder = parent / "kv", .cap_bytes = uint64_t{64} << 20};
  }
  ModelCard& mutable_card() { return card_; }
  MemoryPlan& mutable_plan() { return plan_; }
  const Tokenizer* tokenizer() const override { return tokenizer_; }
  const ChatTemplate* chat_template() const override { return chat_template_; }
  const char* target() const override { return "fake"; }
  void CheckInvariants() override {}

  std::vector<AdapterCard> adapters;
  std::vector<AdapterChoice> scales;  // of the last SetAdapterScales
  EngineStats stats;
  Status model_status, room;
  std::optional<TierStats> disk;
  std::optional<RemoteStats> remote;
  std::map<std::string, uint64_t, std::less<>> remote_epochs;
  mutable Mutex mutex;
  std::vector<ErasedElsewhere> erased_elsewhere KV_GUARDED_BY(mutex);
  TenantTable tenants;
  std::vector<std::pair<GenerateRequest, EventSink>> submitted;
  std::vector<RequestId> cancelled;
  std::vector<std::string> erased;
  std::vector<ForgetRequest> forgotten;
  PrefixList prefixes;
  std::vector<std::string> prefixes_asked;
  std::vector<MissReason> counted_misses;
  uint64_t counted_volatile = 0;
  Erasure erasure;
  std::vector<SequenceState> sequences;
  bool holds_erasures = false;  // then `erasing` keeps their callbacks
  std::vector<ErasureSink> erasing;

 private:
  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_template_;
  ModelCard card_;
  MemoryPlan plan_;
  EngineOptions options_;
};

// Returns all pieces of a body.
inline std::string Joined(Parts parts) {
  std::string text;
  for (std::string part = parts.Next(); !part.empty(); part = parts.Next()) text += part;
  return text;
}

inline HttpRequest RequestOf(std::string method, std::string target, std::string body = "") {
  HttpRequest request;
  request.method = std::move(method);
  request.target = std::move(target);
  request.body = std::move(body);
  return request;
}

// Returns the whole answer, as a connection would send it; "not answered yet" where it comes later.
inline HttpResponse AskService(Service& service, const HttpRequest& request) {
  if (auto refused = service.CheckHead(request, request.body.size())) return std::move(*refused);
  const auto turn = service.AwaitTurn(request, [] {});
  if (!turn) return ErrorResponse(turn.error());
  Outcome outcome = service.Handle(request, *turn);
  if (auto* response = std::get_if<HttpResponse>(&outcome)) {
    response->body += Joined(std::move(response->rest));
    return std::move(*response);
  }
  HttpResponse answer{0, "", "a generation", {}};
  if (auto* later = std::get_if<LaterAnswer>(&outcome)) {
    answer.body = "not answered yet";
    later->begin([&answer](HttpResponse response) { answer = std::move(response); });
  }
  return answer;
}

// Returns a byte-level tokenizer of the 256 bytes and two markers: id = byte.
inline std::string TinyTokenizerJson() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter(ByteLevelChar(static_cast<uint8_t>(byte)));
    if (letter == "\"" || letter == "\\") letter.insert(0, "\\");
    vocab += (byte ? ",\"" : "\"") + letter + "\":" + std::to_string(byte);
  }
  return R"({"added_tokens":[
      {"id":256,"content":"<|bos|>","special":true},{"id":257,"content":"<|end|>","special":true}],
      "normalizer":null,"post_processor":null,
      "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
      "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
         vocab + R"(},"merges":[]}})";
}

// Returns the tiny tokenizer with the tokens of a model that fills in: 258 and those that follow.
inline std::string FimTokenizerJson() {
  std::string tokenizer = TinyTokenizerJson();
  std::string added;
  int id = 258;
  for (const char* text : {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"}) {
    added +=
        R"(,{"id":)" + std::to_string(id++) + R"(,"content":")" + text + R"(","special":true})";
  }
  return tokenizer.insert(tokenizer.find(']'), added);
}

// Returns the tiny tokenizer with the languages of a translation model: 258 and 259.
inline std::string LanguagesTokenizerJson() {
  std::string tokenizer = TinyTokenizerJson();
  return tokenizer.insert(tokenizer.find(']'),
                          R"(,{"id":258,"content":"__en__","special":true},
                             {"id":259,"content":"__fr__","special":true})");
}

inline constexpr std::string_view kTinyTokenizerConfig =
    R"({"bos_token":"<|bos|>","eos_token":"<|end|>"})";

inline constexpr std::string_view kTinyTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ':' + m['content'] + '<|end|>' }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

}  // namespace kvasir
