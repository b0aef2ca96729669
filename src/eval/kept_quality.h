// KeptQuality: what `kvasir eval` measured of a model and KV format, kept beside the model images
// so that `kvasir serve` can say it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/statistics.h"
#include "kvasir/engine.h"

namespace kvasir::eval {

struct KeptQuality {
  std::string content;         // ModelCard::content
  std::string kv_format;       // canonical: "int8; f16 in layers 0"
  std::string model, weights;  // for people
  std::string text;            // what was read
  std::string date;            // "2026-11-21", UTC
  uint64_t tokens = 0;
  Estimate kl;  // nats
  double kl_p99 = 0;
  Estimate same_top;  // share
};

// What `kvasir inspect --json` shows of one: all but the content. KeepQuality writes it too.
nlohmann::ordered_json JsonOf(const KeptQuality& quality);

// A file of JSON per content and kv_format in `folder` (ImageFolderOf), named by a digest of both.
// Written aside, synced and renamed; of more than kMaxKeptQualities the oldest go. Overwrites what
// was measured before. Errors: as CodeOfErrno has them.
Status KeepQuality(const std::string& folder, const KeptQuality& quality);
inline constexpr size_t kMaxKeptQualities = 256;

// Absent where there is none, and where the file is not one that KeepQuality wrote: too long, no
// JSON, another content or format, numbers that cannot be. Never trusted, never an error.
std::optional<KeptQuality> FindQuality(const std::string& folder, const std::string& content,
                                       const std::string& kv_format);

// All of a folder, by model and format. Files that are none are left out.
std::vector<KeptQuality> ListQualities(const std::string& folder);

// "int8: KL 0.0012 +- 0.0001 nats, top-1 99.1% against f32 over 20,480 tokens (kvasir eval,
// 2026-11-21)".
std::string QualityText(const KeptQuality& quality);

// The line of `kvasir serve`: what is kept of the engine's model and KV format, else the command
// that measures it. "" for f32, f16 and bf16: floats that nobody chose to save quality with.
std::string QualityLine(const Engine& engine);

std::string KlText(double nats);        // three digits: "0.00123", "4.56e-08", "0"
std::string CountText(uint64_t count);  // "20,480"

}  // namespace kvasir::eval
