// KeptQuality: the result of `kvasir eval` for a model and KV format, kept beside the model images
// so that `kvasir serve` can print it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/statistics.h"
#include "kvasir/engine.h"

namespace kvasir::eval {

struct KeptQuality {
  std::string content;    // ModelCard::content
  std::string kv_format;  // canonical: "int8; f16 in layers 0"
  // With all numbers: what was compared with full attention in this KV format. Empty: the KV format
  // was compared with f32.
  std::string retention = {};
  std::string model, weights;  // for people
  std::string text;            // the source of the text
  std::string date;            // "2026-11-21", UTC
  uint64_t tokens = 0;
  Estimate kl;  // nats
  double kl_p99 = 0;
  Estimate same_top;  // share
};

// Returns the fields as `kvasir inspect --json` shows them: all except `content`. KeepQuality uses
// it too.
nlohmann::ordered_json JsonOf(const KeptQuality& quality);

// Writes a JSON file for each content, kv_format and retention in `folder` (ImageFolderOf), named
// by a digest of both, with AtomicFile and sync. Replaces an earlier result; removes the oldest
// files beyond kMaxKeptQualities. Errors as in CodeOfErrno.
Status KeepQuality(const std::string& folder, const KeptQuality& quality);
inline constexpr size_t kMaxKeptQualities = 256;

// Absent without a file, and when KeepQuality cannot have written it: too long, not JSON, another
// content, format or retention, impossible numbers. A bad file is never an error.
std::optional<KeptQuality> FindQuality(const std::string& folder, const std::string& content,
                                       const std::string& kv_format,
                                       const std::string& retention = "");

// Returns all results of a folder, sorted by model and format. Skips other files.
std::vector<KeptQuality> ListQualities(const std::string& folder);

// Writes "int8: KL 0.0012 +- 0.0001 nats, top-1 99.1% against f32 over 20,480 tokens (kvasir eval,
// 2026-11-21)".
std::string QualityText(const KeptQuality& quality);

// Returns the line of `kvasir serve`: the kept result of the engine's model and KV format, or the
// command that measures it. "" for f32, f16 and bf16, which do not trade quality for memory.
std::string QualityLine(const Engine& engine);

// Returns the same for the engine's retention; "" where its sequences keep all.
std::string RetentionLine(const Engine& engine);

std::string KlText(double nats);        // three digits: "0.00123", "4.56e-08", "0"
std::string CountText(uint64_t count);  // "20,480"

}  // namespace kvasir::eval
