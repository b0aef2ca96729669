#include "cli/tracing_variables.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/ascii.h"
#include "base/log.h"
#include "server/call.h"

namespace kvasir::cli {
namespace {

// The first of some variables that is not empty.
struct Variable {
  const char* name = "";
  std::string value;
};

Variable FirstSet(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

void Warn(const Variable& variable, std::string_view what, std::string_view why) {
  Log(LogLevel::kWarning, std::string(what), LogField("variable", variable.name),
      LogField("why", std::string(why)));
}

// Splits at commas, without the spaces around.
std::vector<std::string_view> CommaPartsOf(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = Trimmed(text.substr(0, comma), " \t");
    if (!part.empty()) parts.push_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

// Reads "name=value,name=value", with % before the digits of other bytes. A pair without a name,
// or with bytes that no header has, is left out with a warning, which does not show it.
std::vector<TracePair> PairsOf(const Variable& variable) {
  std::vector<TracePair> pairs;
  bool is_right = true;
  for (const std::string_view part : CommaPartsOf(variable.value)) {
    const size_t equals = std::min(part.find('='), part.size());
    TracePair pair{std::string(Trimmed(part.substr(0, equals), " \t")), {}};
    if (equals < part.size()) pair.value = PercentDecoded(Trimmed(part.substr(equals + 1), " \t"));
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7f && c != ':'; };
    const auto is_text = [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 0x7f; };
    if (equals < part.size() && !pair.name.empty() && std::ranges::all_of(pair.name, is_plain) &&
        std::ranges::all_of(pair.value, is_text)) {
      pairs.push_back(std::move(pair));
    } else {
      is_right = false;
    }
  }
  if (!is_right) Warn(variable, "a part of a variable is left out", "it is not name=value");
  return pairs;
}

// Says whether OTEL_TRACES_EXPORTER lets traces be sent.
bool IsExported() {
  const Variable exporter = FirstSet({"OTEL_TRACES_EXPORTER"});
  const auto names = CommaPartsOf(exporter.value);
  if (names.empty() || std::ranges::find(names, "otlp") != names.end()) return true;
  if (std::ranges::find(names, "none") == names.end()) {
    Warn(exporter, "no traces are sent", "it does not name otlp, which is all that is spoken");
  }
  return false;
}

}  // namespace

void UseTracingVariables(ServerOptions* options) {
  if (const Variable name = FirstSet({"OTEL_SERVICE_NAME"}); !name.value.empty()) {
    options->otel_service_name = name.value;
  }
  if (!options->otlp_traces_endpoint) {
    const Variable disabled = FirstSet({"OTEL_SDK_DISABLED"});
    const Variable url =
        FirstSet({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"});
    if (disabled.value == "true" || url.value.empty() || !IsExported()) return;
    std::string address = url.value;
    if (url.name == std::string_view("OTEL_EXPORTER_OTLP_ENDPOINT")) {
      while (address.ends_with('/')) address.pop_back();
      address += "/v1/traces";
    }
    if (!address.starts_with("http://")) {
      return Warn(url, "no traces are sent",
                  "its address is not http://; for https run a collector on this machine");
    }
    options->otlp_traces_endpoint = address;
  }
  const Variable protocol =
      FirstSet({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"});
  if (protocol.value == "grpc") {
    Warn(protocol, "traces are sent as http/json, not as grpc",
         "http/json is all that is spoken; a collector takes it at port 4318");
  }
  options->otlp_headers =
      PairsOf(FirstSet({"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}));
  options->otel_attributes = PairsOf(FirstSet({"OTEL_RESOURCE_ATTRIBUTES"}));
  const bool is_named = !FirstSet({"OTEL_SERVICE_NAME"}).value.empty();
  for (const TracePair& pair : options->otel_attributes) {
    if (pair.name == "service.name" && !is_named) options->otel_service_name = pair.value;
  }
  std::erase_if(options->otel_attributes, [](const TracePair& pair) {
    return pair.name == "service.name" || pair.name == "service.version";
  });
}

}  // namespace kvasir::cli
