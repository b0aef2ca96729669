#include "base/json_tree.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/json_object.h"
#include "base/json_parser.h"

namespace kvasir {
namespace {

using Member = JsonValue::Member;

constexpr size_t kFirstChunkBytes = 4 << 10;
constexpr size_t kLargestChunkBytes = 256 << 10;
constexpr size_t kMaxScanned = 8;  // members of an object without an index

// Sorts the positions of members by key; equal keys keep their order.
void SortByKey(std::span<const Member> members, std::span<uint32_t> order) {
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int compared = members[a].key.compare(members[b].key);
    return compared != 0 ? compared < 0 : a < b;
  });
}

// Removes equal keys: keeps the first place and the last value.
void DropDoubledKeys(std::vector<Member>* members) {
  const auto doubled_key = [members](size_t i) {
    const auto same = [&](const Member& other) { return other.key == (*members)[i].key; };
    return std::any_of(members->begin(), members->begin() + static_cast<ptrdiff_t>(i), same);
  };
  if (members->size() <= kMaxScanned) {
    size_t i = 1;
    while (i < members->size() && !doubled_key(i)) ++i;
    if (i >= members->size()) return;
  }
  std::vector<uint32_t> order(members->size());
  SortByKey(*members, order);
  std::vector<bool> doubled;
  for (size_t i = 0, end = 0; i < order.size(); i = end) {
    end = i + 1;
    while (end < order.size() && (*members)[order[end]].key == (*members)[order[i]].key) ++end;
    if (end == i + 1) continue;
    doubled.resize(members->size());
    (*members)[order[i]].value = (*members)[order[end - 1]].value;
    for (size_t j = i + 1; j < end; ++j) doubled[order[j]] = true;
  }
  if (doubled.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < members->size(); ++i) {
    if (!doubled[i]) (*members)[kept++] = (*members)[i];
  }
  members->resize(kept);
}

// Parses a whole text.
struct PlainReader : JsonBuilder {
  using JsonBuilder::JsonBuilder;
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) { return false; }
};

}  // namespace

JsonValue::JsonValue(uint64_t value)
    : kind_(value <= uint64_t{INT64_MAX} ? Kind::kInteger : Kind::kUnsigned),
      integer_(static_cast<int64_t>(value)) {}

double JsonValue::number() const {
  if (kind_ == Kind::kFloat) return number_;
  if (kind_ == Kind::kDigits) return std::strtod(std::string(text()).c_str(), nullptr);
  return kind_ == Kind::kUnsigned ? static_cast<double>(unsigned_integer())
                                  : static_cast<double>(integer_);
}

std::string JsonValue::integer_text() const {
  if (kind_ == Kind::kDigits) return std::string(text());
  return kind_ == Kind::kUnsigned ? std::to_string(unsigned_integer()) : std::to_string(integer_);
}

std::span<const JsonValue::Member> JsonValue::members() const {
  if (kind_ != Kind::kObject) return {};
  return {static_cast<const Member*>(data_), size_};
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  if (kind_ != Kind::kObject) return nullptr;
  const std::span<const Member> all = members();
  if (size_ <= kMaxScanned) {
    for (const Member& member : all) {
      if (member.key == key) return &member.value;
    }
    return nullptr;
  }
  const auto* order = reinterpret_cast<const uint32_t*>(all.data() + size_);  // after the members
  const auto* found = std::lower_bound(
      order, order + size_, key, [&](uint32_t i, std::string_view k) { return all[i].key < k; });
  return found != order + size_ && all[*found].key == key ? &all[*found].value : nullptr;
}

std::optional<JsonValue> JsonTree::Parse(std::string_view text) {
  // The parser takes a NUL as the end of the text.
  if (text.find('\0') != text.npos || NestsDeeper(text, kMaxJsonDepth)) return std::nullopt;
  PlainReader reader(this);
  if (!JsonParser::sax_parse(text, &reader)) return std::nullopt;
  return reader.root();
}

JsonValue JsonTree::Ids(std::span<const int32_t> ids) {
  if (ids.empty()) return Array({});
  auto* copy = New<int32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), copy);
  return {JsonValue::Kind::kIds, copy, ids.size()};
}

JsonValue JsonTree::Array(std::span<const JsonValue> items) {
  auto* copy = New<JsonValue>(items.size());
  std::uninitialized_copy(items.begin(), items.end(), copy);
  return {JsonValue::Kind::kArray, copy, items.size()};
}

JsonValue JsonTree::Object(std::vector<Member> members) {
  DropDoubledKeys(&members);
  const size_t count = members.size();
  const bool indexed = count > kMaxScanned;
  void* block = Allocate(count * (sizeof(Member) + (indexed ? sizeof(uint32_t) : 0)));
  auto* copy = static_cast<Member*>(block);
  std::uninitialized_copy(members.begin(), members.end(), copy);
  if (indexed) SortByKey({copy, count}, {reinterpret_cast<uint32_t*>(copy + count), count});
  return {JsonValue::Kind::kObject, copy, count};
}

const char* JsonTree::Keep(std::string_view text) {
  auto* copy = static_cast<char*>(Allocate(text.size()));
  if (!text.empty()) std::memcpy(copy, text.data(), text.size());
  return copy;
}

void* JsonTree::Allocate(size_t bytes) {
  bytes = std::max<size_t>(8, (bytes + 7) & ~size_t{7});
  if (bytes > left_) {
    size_t chunk = kFirstChunkBytes << std::min<size_t>(chunks_.size(), 6);
    chunk = std::max(std::min(chunk, kLargestChunkBytes), bytes);
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(chunk));
    if (chunk == bytes && chunks_.size() > 1) {  // the current chunk stays in use
      return chunks_.back().get();
    }
    next_ = chunks_.back().get();
    left_ = chunk;
  }
  left_ -= bytes;
  return std::exchange(next_, next_ + bytes);
}

bool JsonBuilder::Add(const JsonValue& value) {
  if (open_.empty()) {
    root_ = value;
  } else {
    children_.push_back({key_, value});
  }
  key_ = {};
  return true;
}

bool JsonBuilder::number_float(long double value, const std::string& text) {
  if (text.find_first_of(".eE") == text.npos) return Add(tree_->Digits(text));
  const auto number = static_cast<double>(value);
  return std::isfinite(number) && Add(JsonValue(number));
}

bool JsonBuilder::key(std::string& name) {
  key_ = tree_->KeepText(name);
  return true;
}

bool JsonBuilder::Open() {
  open_.push_back({children_.size(), key_});
  key_ = {};
  return true;
}

void JsonBuilder::Close() {
  const Container closed = open_.back();
  open_.pop_back();
  children_.resize(closed.begin);
  key_ = closed.key;
}

bool JsonBuilder::end_object() {
  const auto first = children_.begin() + static_cast<ptrdiff_t>(open_.back().begin);
  const JsonValue object = tree_->Object({first, children_.end()});
  if (object.size() < static_cast<size_t>(children_.end() - first) && !doubled_key_) {
    std::unordered_set<std::string_view> seen;
    const auto doubled = std::find_if(first, children_.end(), [&](const Member& member) {
      return !seen.insert(member.key).second;
    });
    doubled_key_ = doubled->key;
  }
  Close();
  return Add(object);
}

bool JsonBuilder::end_array() {
  std::vector<JsonValue> items;
  items.reserve(children_.size() - open_.back().begin);
  for (size_t i = open_.back().begin; i < children_.size(); ++i)
    items.push_back(children_[i].value);
  const JsonValue array = tree_->Array(items);
  Close();
  return Add(array);
}

}  // namespace kvasir
