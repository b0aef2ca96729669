#include "http/form_body.h"

#include <algorithm>
#include <optional>

#include "base/ascii.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxFormFields = 64, kMaxFieldNameBytes = 64;

template <typename... Args>
tl::unexpected<Error> Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return FailField(Code::kInvalidArgument, "form", format, std::forward<Args>(args)...);
}

std::string TypeOf(std::string_view content_type) {
  return LowerAscii(Trimmed(content_type.substr(0, content_type.find(';'))));
}

// Returns the value of a header's parameter: `name=value` or `name="value"`, after a `;`.
std::optional<std::string> ParameterOf(std::string_view header, std::string_view name) {
  size_t at = header.find(';');
  while (at < header.size()) {
    at = header.find_first_not_of("; \t", at);
    const size_t equals = header.find('=', std::min(at, header.size()));
    if (equals == header.npos) return std::nullopt;
    const std::string key = LowerAscii(Trimmed(header.substr(at, equals - at)));
    std::string value;
    at = equals + 1;
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      at = header.find(';', at);
    } else {
      const size_t end = std::min(header.find(';', at), header.size());
      value = Trimmed(header.substr(at, end - at));
      at = end;
    }
    if (key == name) return value;
  }
  return std::nullopt;
}

// "\r\n" and "\r" become "\n".
std::string WithLineFeeds(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  return out;
}

Status Add(std::string name, std::string_view value, FormFields* fields) {
  if (fields->size() == kMaxFormFields) return Wrong("has more than {} fields", kMaxFormFields);
  if (name.size() > kMaxFieldNameBytes) {
    return Wrong("has a field whose name has {} bytes; at most {} are allowed", name.size(),
                 kMaxFieldNameBytes);
  }
  for (const std::string_view text : {std::string_view(name), value}) {
    const size_t bad = FirstInvalidUtf8(text);
    if (bad != text.size()) {
      return Wrong("field {} is not UTF-8 at byte {}", fields->size() + 1, bad);
    }
  }
  fields->emplace_back(std::move(name), WithLineFeeds(value));
  return {};
}

Result<std::string> Decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const auto byte =
        i + 2 < text.size() ? HexByte(text[i + 1], text[i + 2], HexCase::kAny) : std::nullopt;
    if (!byte) return Wrong("has a '%' without two hexadecimal digits after it");
    out += static_cast<char>(*byte);
    i += 2;
  }
  return out;
}

Result<FormFields> ParseUrlEncoded(std::string_view body) {
  FormFields fields;
  while (!body.empty()) {
    const std::string_view pair = body.substr(0, body.find('&'));
    body.remove_prefix(std::min(pair.size() + 1, body.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    KV_ASSIGN(std::string name, Decoded(pair.substr(0, equals)));
    KV_ASSIGN(const std::string value, Decoded(pair.substr(std::min(equals + 1, pair.size()))));
    KV_TRY(Add(std::move(name), value, &fields));
  }
  return fields;
}

// Returns the part's Content-Disposition, from its head.
std::string_view DispositionOf(std::string_view head) {
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(line.size() + 2, head.size()));
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    if (LowerAscii(Trimmed(line.substr(0, colon))) == "content-disposition") {
      return line.substr(colon + 1);
    }
  }
  return {};
}

Result<FormFields> ParseMultipart(std::string_view body, std::string_view content_type) {
  const auto boundary = ParameterOf(content_type, "boundary");
  constexpr size_t kMaxBoundary = 70;  // RFC 2046
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundary) {
    return Wrong("multipart/form-data needs a boundary of 1 to {} bytes", kMaxBoundary);
  }
  const std::string mark = "\r\n--" + *boundary;
  FormFields fields;
  // The first mark may stand at the beginning, without its line end.
  size_t at =
      body.starts_with(std::string_view(mark).substr(2)) ? mark.size() - 2 : body.find(mark);
  if (at == body.npos) return Wrong("does not have its boundary");
  if (!body.starts_with(std::string_view(mark).substr(2))) at += mark.size();
  while (!body.substr(at).starts_with("--")) {
    const size_t line_end = body.find("\r\n", at);
    const size_t head_end = line_end == body.npos ? body.npos : body.find("\r\n\r\n", line_end);
    const size_t end = head_end == body.npos ? body.npos : body.find(mark, head_end + 2);
    if (end == body.npos) return Wrong("ends before its last boundary");
    const std::string_view head =
        body.substr(line_end, head_end - line_end);  // lines after the mark's own line end
    const std::string_view disposition = DispositionOf(head);
    std::optional<std::string> name = ParameterOf(disposition, "name");
    if (!name) return Wrong("field {} has no name", fields.size() + 1);
    if (ParameterOf(disposition, "filename")) return Wrong("has a file; give texts");
    const size_t begin = std::min(head_end + 4, end);
    KV_TRY(Add(std::move(*name), body.substr(begin, end - begin), &fields));
    at = end + mark.size();
  }
  return fields;
}

}  // namespace

bool IsForm(std::string_view body, std::string_view content_type) {
  const std::string type = TypeOf(content_type);
  if (type == "multipart/form-data") return true;
  if (type == "application/json" || type.ends_with("+json")) return false;
  return !Trimmed(body.substr(0, body.find('{') + 1)).starts_with('{');
}

Result<FormFields> ParseForm(std::string_view body, std::string_view content_type) {
  if (TypeOf(content_type) == "multipart/form-data") return ParseMultipart(body, content_type);
  return ParseUrlEncoded(body);
}

}  // namespace kvasir
