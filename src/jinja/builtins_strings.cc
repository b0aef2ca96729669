// Text helpers that filters and methods share.
#include <algorithm>
#include <set>

#include "jinja/builtins.h"

namespace kvasir::jinja {

Text Strip(const Text& text, Side side, const Text* chars) {
  const std::string_view view = text.view();
  std::set<std::string_view> given;
  for (size_t i = 0, n = 0; chars && i < chars->size(); i += n) {
    n = CharSize(chars->view(), i);
    given.insert(chars->view().substr(i, n));
  }
  const auto strips = [&](size_t at, size_t n) {
    return chars ? given.contains(view.substr(at, n)) : IsSpace(CharAt(view, at));
  };
  size_t begin = 0, end = view.size();
  while (side != Side::kRight && begin < end) {
    const size_t n = CharSize(view, begin);
    if (!strips(begin, n)) break;
    begin += n;
  }
  while (side != Side::kLeft && end > begin) {
    const size_t start = PreviousChar(view, end);
    if (!strips(start, end - start)) break;
    end = start;
  }
  return text.Slice(begin, end);
}

namespace {

// Replaces an empty pattern, which as in Python matches before each character and at the end.
Text ReplaceEmpty(Interpreter& run, const Text& text, const Text& to, int64_t max) {
  Text out;
  size_t at = 0;
  while (max != 0 && run.Charge(1 + to.size() / 16)) {
    out.Append(to);
    --max;
    if (at >= text.size()) return out;
    const size_t n = CharSize(text.view(), at);
    out.Append(text, at, at + n);
    at += n;
  }
  out.Append(text, at, text.size());
  return out;
}

}  // namespace

Text Replace(Interpreter& run, const Text& text, std::string_view from, const Text& to,
             int64_t max) {
  if (from.empty()) return ReplaceEmpty(run, text, to, max);
  if (!run.ChargeSearch(text.size(), from.size())) return Text();
  Text out;
  size_t at = 0;
  while (max != 0) {
    const size_t found = FindText(text.view(), from, at);
    if (found == std::string::npos || !run.Charge(1 + to.size() / 16)) break;
    out.Append(text, at, found);
    out.Append(to);
    at = found + from.size();
    --max;
  }
  out.Append(text, at, text.size());
  return out;
}

Text Join(Interpreter& run, const std::vector<Value>& items, const Text& separator) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!run.Charge(WeightOf(items[i]) + separator.size() / 16)) return Text();
    if (i > 0) out.Append(separator);
    out.Append(ToText(items[i]));
  }
  return out;
}

Text Repeat(Interpreter& run, const Text& text, int64_t times) {
  Text out;
  const auto whole = static_cast<size_t>(std::clamp<int64_t>(times, 0, INT32_MAX)) * text.size();
  if (whole <= (size_t{1} << 20)) out.Reserve(whole);
  for (int64_t i = 0; i < times && !text.empty(); ++i) {
    if (!run.Charge(1 + text.size() / 16)) return Text();
    out.Append(text);
  }
  return out;
}

std::vector<Text> SplitLines(const Text& text, bool keep_ends) {
  std::vector<Text> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t code = CharAt(text.view(), i);
    size_t next = i + CharSize(text.view(), i);
    const bool ends = (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    if (ends) {
      if (code == '\r' && next < text.size() && text.bytes()[next] == '\n') ++next;
      out.push_back(text.Slice(begin, keep_ends ? next : i));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) out.push_back(text.Slice(begin, text.size()));
  return out;
}

}  // namespace kvasir::jinja
