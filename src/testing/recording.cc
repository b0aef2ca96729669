#include "testing/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json_object.h"
#include "base/random.h"
#include "base/result.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr std::string_view kAzureHeader = "TIMESTAMP,";

template <typename T>
Status ReadCount(const json& value, const char* key, const std::string& where, T* out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<T>::max()) {
    return Fail(Code::kCorruption, "{}: {}: {} is not a whole number from 0 to {}", where, key,
                value.dump(), std::numeric_limits<T>::max());
  }
  *out = value.get<T>();
  return {};
}

Result<json> Member(const json& line, const char* key, const std::string& where) {
  const auto it = line.find(key);
  if (it == line.end()) return Fail(Code::kCorruption, "{}: the key {} is missing", where, key);
  return *it;
}

Result<RecordedRequest> RequestOf(const json& line, const std::string& where) {
  RecordedRequest request;
  KV_ASSIGN(const json timestamp, Member(line, "timestamp", where));
  KV_TRY(ReadCount(timestamp, "timestamp", where, &request.timestamp_ms));
  KV_ASSIGN(const json input, Member(line, "input_length", where));
  KV_TRY(ReadCount(input, "input_length", where, &request.input_tokens));
  KV_ASSIGN(const json output, Member(line, "output_length", where));
  KV_TRY(ReadCount(output, "output_length", where, &request.output_tokens));
  KV_ASSIGN(const json ids, Member(line, "hash_ids", where));
  if (!ids.is_array()) return Fail(Code::kCorruption, "{}: hash_ids is not a list", where);
  request.block_ids.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    KV_TRY(ReadCount(ids[i], "hash_ids", where, &request.block_ids[i]));
  }
  return request;
}

}  // namespace

Result<std::vector<RecordedRequest>> ParseRecording(std::string_view text,
                                                    const std::string& file) {
  std::vector<RecordedRequest> requests;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{} line {}", file, number);
    KV_ASSIGN(const json object, ParseJsonObject(line, where));
    KV_ASSIGN(RecordedRequest request, RequestOf(object, where));
    requests.push_back(std::move(request));
  }
  return requests;
}

Result<std::vector<RecordedRequest>> ReadRecording(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(Code::kNotFound, "recording: {}: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) return Fail(Code::kIoError, "recording: {} cannot be read", path);
  const bool is_csv = text.view().starts_with(kAzureHeader);
  return is_csv ? ParseAzureRecording(text.view(), path) : ParseRecording(text.view(), path);
}

std::vector<TokenId> PromptOf(const RecordedRequest& request, uint32_t vocab_size) {
  std::vector<TokenId> prompt(
      std::min<size_t>(request.input_tokens, request.block_ids.size() * kRecordedBlockTokens));
  for (size_t i = 0; i < prompt.size(); ++i) {
    const uint64_t block = request.block_ids[i / kRecordedBlockTokens];
    const uint64_t bits = Mix64(block * kRecordedBlockTokens + i % kRecordedBlockTokens);
    prompt[i] = static_cast<TokenId>(bits % vocab_size);
  }
  return prompt;
}

}  // namespace kvasir
