#include "api/session_places.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "api/session_for_test.h"

namespace kvasir {
namespace {

class SessionPlacesTest : public ByteSessionTest {
 protected:
  using Names = std::vector<std::string>;

  // Makes a session with so many messages of the user; the last one has the segment "s".
  SessionState Messages(size_t count) {
    std::vector<SessionMessage> messages;
    for (size_t i = 0; i < count; ++i) messages.push_back(Said("user", "text"));
    if (count > 0) {
      SessionMessage::More more;
      more.segments.push_back({"s", 1, 3});
      messages.back().SetMore(std::move(more));
    }
    return *Append(store_, Session({}), std::move(messages));
  }
  // Shows what a body names: "0-2" are messages 0 and 1, "1:3-4" a part of message 1.
  std::string Named(std::string_view body, size_t messages = 3) {
    const auto named = ReadForget(body, Messages(messages));
    if (!named) return named.error().text();
    if (const auto* range = std::get_if<MessageRange>(&*named)) {
      return std::to_string(range->begin) + "-" + std::to_string(range->end);
    }
    const auto& part = std::get<SessionPart>(*named);
    return std::to_string(part.index) + ":" + std::to_string(part.begin) + "-" +
           std::to_string(part.end.value_or(0));
  }
  // Shows the index that a path names.
  std::string Index(std::string_view text, size_t messages = 2) {
    const auto index = ReadIndex(text, Messages(messages));
    return index ? std::to_string(*index) : index.error().text();
  }
};

TEST_F(SessionPlacesTest, ACountIsThatOfTheBodyOrOfAll) {
  bool forget = false;
  Names ignored;
  const auto count = [&](std::string_view body, std::optional<uint64_t> all) {
    const auto read = ReadCount(body, all, &forget, &ignored);
    return read ? std::to_string(*read) : read.error().text();
  };
  EXPECT_EQ(count("", 3), "3");
  EXPECT_EQ(count("{}", 0), "0");
  EXPECT_EQ(count(R"({"messages":0})", 3), "0");
  EXPECT_EQ(count(R"({"messages":9223372036854775807})", {}), "9223372036854775807");
  EXPECT_FALSE(forget);
  EXPECT_EQ(count(R"({"messages":2,"forget":true,"x":1})", {}), "2");
  EXPECT_TRUE(forget);
  EXPECT_EQ(ignored, Names{"x"});
  EXPECT_EQ(count("{}", {}), "messages: is missing: how many messages stay");
  EXPECT_EQ(count(R"({"messages":-1})", 3).substr(0, 9), "messages:");
  EXPECT_EQ(count(R"({"messages":1.5})", 3).substr(0, 9), "messages:");
  EXPECT_EQ(count(R"({"messages":1,"forget":1})", 3).substr(0, 7), "forget:");
  EXPECT_EQ(ReadCount("", {}, nullptr, &ignored).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ReadCount("[]", 3, nullptr, &ignored).error().code, Code::kInvalidArgument);
}

TEST_F(SessionPlacesTest, ACallThatForgetsNothingIgnoresThatField) {
  Names ignored;
  EXPECT_EQ(*ReadCount(R"({"messages":1,"forget":true})", {}, nullptr, &ignored), 1u);
  EXPECT_EQ(ignored, Names{"forget"});
}

TEST_F(SessionPlacesTest, AnIndexCountsFromEitherEnd) {
  EXPECT_EQ(Index("0"), "0");
  EXPECT_EQ(Index("1"), "1");
  EXPECT_EQ(Index("-1"), "1");
  EXPECT_EQ(Index("-2"), "0");
  const std::string has = "; the session has 2 messages: 0 to 1, or from its end -1 to -2";
  EXPECT_EQ(Index("2"), "index: 2 names no message" + has);
  EXPECT_EQ(Index("-3"), "index: -3 names no message" + has);
  for (const std::string text : {"", "x", "1x", " 1", "+1", "1.0", "9223372036854775808"}) {
    EXPECT_EQ(Index(text), "index: '" + text + "' is not the index of a message" + has);
  }
  EXPECT_EQ(Index("0", 0), "index: 0 names no message; the session has no messages");
  EXPECT_EQ(Index("-1", 1), "0");
  EXPECT_EQ(Index("-9223372036854775808", 1).substr(0, 41),
            "index: -9223372036854775808 names no mess");
}

TEST_F(SessionPlacesTest, ABodyOfForgetNamesMessagesOrAPart) {
  EXPECT_EQ(Named(R"({"last":1})"), "2-3");
  EXPECT_EQ(Named(R"({"last":3})"), "0-3");
  EXPECT_EQ(Named(R"({"index":0})"), "0-1");
  EXPECT_EQ(Named(R"({"index":-1})"), "2-3");
  EXPECT_EQ(Named(R"({"index":-3,"begin":1,"end":2})"), "0:1-2");
  EXPECT_EQ(Named(R"({"segment":"s"})"), "2:1-3");
  EXPECT_EQ(Named(R"({"from":0})"), "0-3");
  EXPECT_EQ(Named(R"({"from":1,"to":1})"), "1-2");
  EXPECT_EQ(Named(R"({"from":-2,"to":-1})"), "1-3");
}

TEST_F(SessionPlacesTest, ABodyThatNamesNoPlaceIsRefused) {
  EXPECT_EQ(Named(R"({"last":0})"), "last: 0 is not an integer of at least 1");
  EXPECT_EQ(Named(R"({"last":4})").substr(0, 34), "last: 4 is more than the 3 turns o");
  EXPECT_EQ(Named(R"({"index":3})").substr(0, 25), "index: 3 names no message");
  EXPECT_EQ(Named(R"({"index":0})", 0), "index: 0 names no message; the session has no messages");
  EXPECT_EQ(Named(R"({"from":3})").substr(0, 24), "from: 3 names no message");
  EXPECT_EQ(Named(R"({"from":0,"to":-4})").substr(0, 23), "to: -4 names no message");
  EXPECT_EQ(Named(R"({"from":2,"to":1})"), "to: message 1 comes before `from`, message 2");
  EXPECT_EQ(Named(R"({"index":0,"begin":1})"), "end: is missing");
  EXPECT_EQ(Named(R"({"index":0,"end":1})"), "begin: is missing");
  EXPECT_EQ(Named(R"({"index":0,"begin":-1,"end":1})").substr(0, 6), "begin:");
  EXPECT_EQ(Named(R"({"segment":"t"})"), "segment: the session has no segment of this name");
  EXPECT_EQ(ReadForget(R"({"segment":"t"})", Messages(1)).error().code, Code::kNotFound);
  for (const char* body : {"", "{}"}) {
    EXPECT_EQ(Named(body).substr(0, 34), R"(index: is missing; give {"last": 1)") << body;
  }
  EXPECT_EQ(Named(R"({"to":1})").substr(0, 17), "from: is missing;");
  EXPECT_EQ(Named(R"({"begin":1,"end":2})").substr(0, 18), "index: is missing;");
}

// Nothing may be erased by a body that says two things, or something that is not understood.
TEST_F(SessionPlacesTest, ABodyThatSaysMoreThanOnePlaceIsRefused) {
  EXPECT_EQ(Named(R"({"last":1,"index":0})"),
            "last: stands alone, and index names another place; give one of them");
  EXPECT_EQ(Named(R"({"segment":"s","from":0})"),
            "segment: stands alone, and from names another place; give one of them");
  EXPECT_EQ(Named(R"({"from":0,"end":1})").substr(0, 6), "index:");
  EXPECT_EQ(Named(R"({"last":1,"role":"user"})").substr(0, 48),
            "role: is not a field of forget, and nothing is f");
}

}  // namespace
}  // namespace kvasir
