#include "observe/request_spans.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hex.h"
#include "base/random.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int kInternal = 1, kServer = 2;       // SpanKind
constexpr int kStatusOk = 1, kStatusError = 2;  // StatusCode

struct Attribute {
  const char* key;
  json value;  // {"intValue": "3"}
};
Attribute Text(const char* key, std::string value) {
  return {key, {{"stringValue", std::move(value)}}};
}
Attribute Whole(const char* key, uint64_t value) {
  return {key, {{"intValue", std::to_string(value)}}};
}
Attribute Real(const char* key, double value) { return {key, {{"doubleValue", value}}}; }
Attribute Flag(const char* key, bool value) { return {key, {{"boolValue", value}}}; }

json AttributesJson(std::vector<Attribute> attributes) {
  json list = json::array();
  for (Attribute& each : attributes) {
    list.push_back({{"key", each.key}, {"value", std::move(each.value)}});
  }
  return list;
}

double Seconds(uint64_t begin_ns, uint64_t end_ns) {
  return static_cast<double>(end_ns - std::min(begin_ns, end_ns)) * 1e-9;
}

// Adds the spans of one request to a list.
class Writer {
 public:
  Writer(const TracedRequest& request, int64_t unix_offset_ns, json& spans)
      : request_(request), trace_(request.trace), offset_ns_(unix_offset_ns), spans_(spans) {}

  void WriteAll() {
    WriteRoot();
    const RequestTrace& t = trace_;
    Part("queue", t.submitted_ns, t.admitted_ns == 0 ? t.ended_ns : t.admitted_ns,
         {Real("kvasir.shared_ms", t.receipt.shared_ms)});
    if (t.admitted_ns != 0) {
      WriteMatch();
      WriteRestore();
      const uint64_t first_ns = t.first_token_ns == 0 ? t.ended_ns : t.first_token_ns;
      Part("prefill", t.matched_ns, first_ns, {Whole("kvasir.computed", t.receipt.computed)});
    }
    if (t.first_token_ns != 0) {
      Part("decode", t.first_token_ns, t.last_token_ns,
           {Whole("kvasir.tokens", t.completion_tokens)});
    }
    for (const auto& preemption : t.preemptions) WritePreemption(preemption);
    for (const auto& allocation : t.allocations) WriteAllocation(allocation);
  }

 private:
  // Returns the id of the request's n-th span; 0 is the root.
  SpanId IdOf(uint64_t number) const {
    if (number == 0) return request_.root;
    uint64_t bits = number;
    for (const uint8_t byte : request_.root) bits = Mix64(bits ^ byte);
    SpanId id;
    for (uint8_t& byte : id) {
      byte = static_cast<uint8_t>(bits);
      bits >>= 8;
    }
    id[0] |= 1;  // not all zeros
    return id;
  }

  json& Span(const char* name, uint64_t begin_ns, uint64_t end_ns,
             std::vector<Attribute> attributes) {
    const auto unix_text = [&](uint64_t ns) {
      return std::to_string(static_cast<int64_t>(ns) + offset_ns_);
    };
    json span = {{"traceId", ToHex(request_.context.trace)},
                 {"spanId", ToHex(IdOf(num_spans_++))},
                 {"name", name},
                 {"kind", kInternal},
                 {"startTimeUnixNano", unix_text(begin_ns)},
                 {"endTimeUnixNano", unix_text(std::max(begin_ns, end_ns))},
                 {"attributes", AttributesJson(std::move(attributes))}};
    spans_.push_back(std::move(span));
    return spans_.back();
  }

  // Adds a child of the root, or of the span `parent`.
  void Part(const char* name, uint64_t begin_ns, uint64_t end_ns, std::vector<Attribute> attributes,
            uint64_t parent = 0) {
    Span(name, begin_ns, end_ns, std::move(attributes))["parentSpanId"] = ToHex(IdOf(parent));
  }

  void WriteRoot() {
    const RequestTrace& t = trace_;
    std::vector<Attribute> attributes = {
        Text("gen_ai.request.id", request_.id),
        Text("gen_ai.response.model", request_.model_name),
        Whole("gen_ai.request.n", t.choices),
        Whole("gen_ai.request.max_tokens", t.max_tokens),
        Real("gen_ai.request.temperature", t.temperature),
        Real("gen_ai.request.top_p", t.top_p),
        Whole("gen_ai.usage.prompt_tokens", t.receipt.prompt_tokens),
        Whole("gen_ai.usage.completion_tokens", t.completion_tokens),
        Whole("gen_ai.usage.cached_tokens", t.receipt.cached_tokens()),
        Real("gen_ai.latency.e2e", Seconds(t.submitted_ns, t.ended_ns))};
    if (t.admitted_ns != 0) {
      attributes.push_back(
          Real("gen_ai.latency.time_in_queue", Seconds(t.submitted_ns, t.admitted_ns)));
    }
    if (t.first_token_ns != 0) {
      const auto add = [&](const char* key, uint64_t begin_ns, uint64_t end_ns) {
        attributes.push_back(Real(key, Seconds(begin_ns, end_ns)));
      };
      add("gen_ai.latency.time_to_first_token", t.submitted_ns, t.first_token_ns);
      add("gen_ai.latency.time_in_model_prefill", t.admitted_ns, t.first_token_ns);
      add("gen_ai.latency.time_in_model_decode", t.first_token_ns, t.last_token_ns);
      add("gen_ai.latency.time_in_model_inference", t.admitted_ns, t.last_token_ns);
    }
    if (t.end == TraceEnd::kCancelled) attributes.push_back(Flag("kvasir.cancelled", true));
    json& span = Span("llm_request", t.submitted_ns, t.ended_ns, std::move(attributes));
    span["kind"] = kServer;
    if (request_.context.parent) span["parentSpanId"] = ToHex(*request_.context.parent);
    span["status"] = {{"code", t.end == TraceEnd::kFailed ? kStatusError : kStatusOk}};
  }

  void WriteMatch() {
    const Receipt& receipt = trace_.receipt;
    std::vector<Attribute> attributes = {Whole("kvasir.reused.pool", receipt.reused_pool),
                                         Whole("kvasir.reused.partial", receipt.reused_partial),
                                         Whole("kvasir.reused.disk", receipt.reused_disk),
                                         Whole("kvasir.reused.remote", receipt.reused_remote)};
    if (receipt.miss) {
      attributes.push_back(Text("kvasir.miss.reason", ToString(receipt.miss->reason)));
      attributes.push_back(Whole("kvasir.miss.at_token", receipt.miss->at_token));
    }
    Part("match", trace_.admitted_ns, trace_.matched_ns, std::move(attributes));
  }

  void WriteRestore() {
    const RequestTrace::Restore& restore = trace_.restore;
    if (restore.begin_ns == 0) return;
    Part("restore", restore.begin_ns, restore.end_ns == 0 ? trace_.ended_ns : restore.end_ns,
         {Whole("kvasir.restored.disk", restore.disk_tokens),
          Whole("kvasir.restored.remote", restore.remote_tokens)});
  }

  void WritePreemption(const RequestTrace::Preemption& each) {
    const bool resumed = each.resumed_ns != 0;
    Part("preempt", each.begin_ns, resumed ? each.resumed_ns : trace_.ended_ns,
         {Text("kvasir.cause", ToString(each.cause))});
    if (!resumed) return;
    Part("resume", each.resumed_ns, each.caught_up_ns == 0 ? trace_.ended_ns : each.caught_up_ns,
         {Whole("kvasir.recomputed", each.recomputed)});
  }

  void WriteAllocation(const RequestTrace::Allocation& each) {
    const uint64_t number = num_spans_;
    Part("allocate", each.begin_ns, each.end_ns, {Flag("kvasir.waited", each.waited)});
    if (each.evicted_blocks == 0) return;
    const bool own = each.evicted_own_blocks == each.evicted_blocks;
    Part("evict", each.begin_ns, each.end_ns,
         {Whole("kvasir.blocks", each.evicted_blocks), Whole("kvasir.tokens", each.evicted_tokens),
          Text("kvasir.cause", "capacity"), Text("kvasir.of", own ? "own" : "other")},
         number);
  }

  const TracedRequest& request_;
  const RequestTrace& trace_;
  const int64_t offset_ns_;
  json& spans_;
  uint64_t num_spans_ = 0;
};

}  // namespace

size_t NumSpans(const RequestTrace& trace) {
  size_t spans = 2 + (trace.admitted_ns != 0 ? 2 : 0) + (trace.first_token_ns != 0 ? 1 : 0) +
                 (trace.admitted_ns != 0 && trace.restore.begin_ns != 0 ? 1 : 0);
  for (const auto& each : trace.preemptions) spans += each.resumed_ns == 0 ? 1 : 2;
  for (const auto& each : trace.allocations) spans += each.evicted_blocks == 0 ? 1 : 2;
  return spans;
}

json OtlpJson(std::span<const TracedRequest> requests, const SpanSource& source,
              int64_t unix_offset_ns) {
  json spans = json::array();
  for (const TracedRequest& request : requests) Writer(request, unix_offset_ns, spans).WriteAll();
  const json scope = {{"scope", {{"name", "kvasir"}, {"version", source.version}}},
                      {"spans", std::move(spans)}};
  json resource = AttributesJson(
      {Text("service.name", source.service), Text("service.version", source.version)});
  for (const TracePair& pair : source.attributes) {
    resource.push_back(AttributesJson({Text(pair.name.c_str(), pair.value)})[0]);
  }
  return {{"resourceSpans", json::array({{{"resource", {{"attributes", resource}}},
                                          {"scopeSpans", json::array({scope})}}})}};
}

}  // namespace kvasir
