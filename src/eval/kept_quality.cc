#include "eval/kept_quality.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "base/atomic_file.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/system_error.h"
#include "kvasir/images.h"

namespace kvasir::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kPrefix = "eval-", kSuffix = ".json";
constexpr int kVersion = 1;
constexpr size_t kMaxKeptBytes = 16 << 10, kMaxTextBytes = 512;
constexpr double kMaxKl = 1e6;

fs::path PathOf(const std::string& folder, const std::string& content, const std::string& kv_format,
                const std::string& retention) {
  const Digest key =
      Sha256Of(content + "\n" + kv_format + (retention.empty() ? "" : "\n" + retention));
  return fs::path(folder) / fmt::format("{}{}{}", kPrefix, ToHex(key).substr(0, 32), kSuffix);
}

// Removes what a terminal must not get and cuts to the limit of the file. Formats with many skipped
// layers are longer than names and have a separate limit.
std::string Cleaned(const std::string& text, size_t max_bytes) {
  std::string out = text.substr(0, max_bytes);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

// Cleans every text field.
KeptQuality Cleaned(KeptQuality quality) {
  for (std::string* text : {&quality.model, &quality.weights, &quality.text}) {
    *text = Cleaned(*text, kMaxTextBytes);
  }
  return quality;
}

// Reads a regular file of at most kMaxKeptBytes; nullopt for others.
std::optional<std::string> ReadSmallFile(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about;
  if (!file || fstat(file.fd(), &about) != 0 || !S_ISREG(about.st_mode)) return std::nullopt;
  std::string bytes(kMaxKeptBytes + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t n = read(file.fd(), bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > kMaxKeptBytes) return std::nullopt;
  bytes.resize(size);
  return bytes;
}

bool IsDate(const std::string& text) {
  constexpr std::string_view kForm = "0000-00-00";
  return std::ranges::equal(
      text, kForm, [](char c, char form) { return form == '-' ? c == '-' : IsAsciiDigit(c); });
}

std::optional<KeptQuality> Parse(const std::string& bytes) {
  const Json json = Json::parse(bytes, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  bool good = json.value("kvasir_eval", Json()) == kVersion;
  const auto text = [&](const char* key) {
    const Json value = json.value(key, Json());
    if (!value.is_string()) good = false;
    return value.is_string() ? Cleaned(value.get<std::string>(), kMaxKeptBytes) : "";
  };
  const auto number = [&](const char* key, double max) {
    const Json value = json.value(key, Json());
    const double x = value.is_number() ? value.get<double>() : -1;
    good &= x >= 0 && x <= max;  // false for NaN
    return x;
  };
  KeptQuality quality;
  quality.content = text("content");
  quality.kv_format = text("kv_format");
  if (json.contains("retention")) quality.retention = text("retention");
  quality.model = text("model");
  quality.weights = text("weights");
  quality.text = text("text");
  quality.date = text("date");
  const Json tokens = json.value("tokens", Json());
  good &= tokens.is_number_unsigned() && IsDate(quality.date);
  quality.kl = {number("kl", kMaxKl), number("kl_error", kMaxKl)};
  quality.kl_p99 = number("kl_p99", kMaxKl);
  quality.same_top = {number("top1", 1), number("top1_error", 1)};
  if (!good) return std::nullopt;
  quality.tokens = tokens.get<uint64_t>();
  return quality;
}

struct KeptFile {
  fs::path path;
  fs::file_time_type time;
};

std::vector<KeptFile> FilesOf(const std::string& folder) {
  std::vector<KeptFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    files.push_back({entry.path(), entry.last_write_time(error)});
  }
  return files;
}

void RemoveOldest(const std::string& folder) {
  std::vector<KeptFile> files = FilesOf(folder);
  if (files.size() <= kMaxKeptQualities) return;
  std::ranges::sort(files, std::ranges::greater(), &KeptFile::time);
  std::error_code error;
  for (size_t i = kMaxKeptQualities; i < files.size(); ++i) fs::remove(files[i].path, error);
}

bool IsPlain(std::string_view part) {
  if (part.starts_with("k=") || part.starts_with("v=")) part.remove_prefix(2);
  return part == "f32" || part == "f16" || part == "bf16";
}

// Quotes a word for a shell.
std::string Quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string CommandOf(const EngineOptions& options) {
  std::string command = "kvasir eval";
  if (options.model) command += " --model " + Quoted(*options.model);
  if (options.weights) command += " --weights " + Quoted(*options.weights);
  return command;
}

std::string LastFlagsOf(const EngineOptions& options) {
  std::string flags;
  if (!options.kv_skip_layers.empty()) {
    flags += fmt::format(" --kv-skip-layers {}", fmt::join(options.kv_skip_layers, ","));
  }
  if (options.cache_dir) flags += " --cache-dir " + Quoted(*options.cache_dir);
  return flags;
}

}  // namespace

nlohmann::ordered_json JsonOf(const KeptQuality& quality) {
  nlohmann::ordered_json json = {
      {"model", quality.model}, {"weights", quality.weights}, {"kv_format", quality.kv_format}};
  if (!quality.retention.empty()) json["retention"] = quality.retention;
  json.update({{"kl", quality.kl.value},
               {"kl_error", quality.kl.error},
               {"kl_p99", quality.kl_p99},
               {"top1", quality.same_top.value},
               {"top1_error", quality.same_top.error},
               {"tokens", quality.tokens},
               {"text", quality.text},
               {"date", quality.date}});
  return json;
}

Status KeepQuality(const std::string& folder, const KeptQuality& quality) {
  const fs::path path = PathOf(folder, quality.content, quality.kv_format, quality.retention);
  nlohmann::ordered_json json = {{"kvasir_eval", kVersion}, {"content", quality.content}};
  json.update(JsonOf(Cleaned(quality)));
  const std::string bytes = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FailErrno(error.value(), "cannot make the folder {}", folder);
  KV_TRY(WriteAtomicFile(path, bytes, {}));  // synced, because measuring may take hours
  RemoveOldest(folder);
  return {};
}

std::optional<KeptQuality> FindQuality(const std::string& folder, const std::string& content,
                                       const std::string& kv_format, const std::string& retention) {
  const auto bytes = ReadSmallFile(PathOf(folder, content, kv_format, retention));
  if (!bytes) return std::nullopt;
  std::optional<KeptQuality> quality = Parse(*bytes);
  if (quality && (quality->content != content || quality->kv_format != kv_format ||
                  quality->retention != retention)) {
    return std::nullopt;
  }
  return quality;
}

std::vector<KeptQuality> ListQualities(const std::string& folder) {
  std::vector<KeptQuality> all;
  for (const KeptFile& file : FilesOf(folder)) {
    const auto bytes = ReadSmallFile(file.path);
    std::optional<KeptQuality> quality = bytes ? Parse(*bytes) : std::nullopt;
    if (quality &&
        PathOf(folder, quality->content, quality->kv_format, quality->retention) == file.path) {
      all.push_back(std::move(*quality));
    }
  }
  std::ranges::sort(all, {}, [](const KeptQuality& quality) {
    return std::tie(quality.model, quality.weights, quality.content, quality.kv_format,
                    quality.retention);
  });
  return all;
}

std::string KlText(double nats) { return fmt::format("{:.3g}", nats); }

std::string CountText(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string QualityText(const KeptQuality& quality) {
  return fmt::format(
      "{}: KL {} +- {:.2g} nats, top-1 {:.1f}% against {} over {} tokens (kvasir eval, {})",
      quality.retention.empty() ? quality.kv_format : quality.retention, KlText(quality.kl.value),
      quality.kl.error, 100 * quality.same_top.value,
      quality.retention.empty() ? "f32" : "full attention", CountText(quality.tokens),
      quality.date);
}

std::string QualityLine(const Engine& engine) {
  const EngineOptions& options = engine.options();
  const std::string& format = options.kv_format;
  const size_t comma = std::min(format.find(','), format.size());
  if (IsPlain(std::string_view(format).substr(0, comma)) &&
      (comma == format.size() || IsPlain(std::string_view(format).substr(comma + 1)))) {
    return "";
  }
  const std::string& kv_format = engine.plan().kv_format;
  if (const auto folder = ImageFolderOf(options.cache_dir)) {
    if (const auto kept = FindQuality(*folder, engine.card().content, kv_format)) {
      return QualityText(*kept);
    }
  }
  return fmt::format("{}: not measured for this model; run: {} --kv-format {}{}", kv_format,
                     CommandOf(options), Quoted(format), LastFlagsOf(options));
}

std::string RetentionLine(const Engine& engine) {
  const EngineOptions& options = engine.options();
  if (options.retention.policy == Retention::kFull) return "";
  const MemoryPlan& plan = engine.plan();
  if (const auto folder = ImageFolderOf(options.cache_dir)) {
    const auto kept = FindQuality(*folder, engine.card().content, plan.kv_format, plan.retention);
    if (kept) return QualityText(*kept);
  }
  if (options.retention.keeps_context) {
    return fmt::format("{}: tokens go only where the context of {} is full", plan.retention,
                       plan.ctx_size);
  }
  return fmt::format("{}: not measured for this model; run: {} --retention {} --kv-format {}{}",
                     plan.retention, CommandOf(options), Quoted(plan.retention),
                     Quoted(options.kv_format), LastFlagsOf(options));
}

}  // namespace kvasir::eval
