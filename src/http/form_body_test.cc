#include "http/form_body.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr const char* kUrlEncoded = "application/x-www-form-urlencoded";
constexpr const char* kMultipart = "multipart/form-data; charset=utf-8; boundary=\"a b\"";

std::string Part(const std::string& head, const std::string& value) {
  return "--a b\r\n" + head + "\r\n\r\n" + value + "\r\n";
}

TEST(FormBody, UrlEncodedFieldsAreDecoded) {
  EXPECT_EQ(
      ParseForm("q=a%20b+c%C3%A9%0D%0Ad&source=en&&empty=&alone", kUrlEncoded),
      (FormFields{{"q", "a b c\xC3\xA9\nd"}, {"source", "en"}, {"empty", ""}, {"alone", ""}}));
  EXPECT_EQ(ParseForm("", kUrlEncoded), FormFields{});
  EXPECT_EQ(ParseForm("a=b=c&d=%2525", ""), (FormFields{{"a", "b=c"}, {"d", "%25"}}));
}

TEST(FormBody, MultipartFieldsAreTakenAsTheyAre) {
  const std::string body =
      "preamble\r\n" + Part("Content-Disposition: form-data; name=\"q\"", "a\r\n--b\r\n%20+") +
      Part("X: y\r\nCONTENT-DISPOSITION: form-data; name=source", "en") +
      Part("Content-Disposition: form-data; name=\"\\\"empty\\\"\"", "") + "--a b--\r\nepilogue";
  const FormFields fields = {{"q", "a\n--b\n%20+"}, {"source", "en"}, {"\"empty\"", ""}};
  EXPECT_EQ(ParseForm(body, kMultipart), fields);
  EXPECT_EQ(ParseForm(body.substr(10), kMultipart), fields);
  EXPECT_EQ(ParseForm("--a b--", kMultipart), FormFields{});
}

TEST(FormBody, WhatIsWrongIsSaid) {
  const auto error = [](std::string_view body, const char* type) {
    const Result<FormFields> fields = ParseForm(body, type);
    return fields ? "" : fields.error().text();
  };
  EXPECT_NE(error("q=%4", kUrlEncoded).find("form: has a '%'"), std::string::npos);
  EXPECT_NE(error("q=%4G", kUrlEncoded).find("'%'"), std::string::npos);
  EXPECT_NE(error("a=b&q=x%FF", kUrlEncoded).find("field 2 is not UTF-8 at byte 1"),
            std::string::npos);
  EXPECT_NE(error(std::string(65, 'n'), kUrlEncoded).find("65 bytes"), std::string::npos);
  std::string many;
  for (int i = 0; i < 65; ++i) many += "f&";
  EXPECT_NE(error(many, kUrlEncoded).find("64 fields"), std::string::npos);
  EXPECT_NE(error("--x--", "multipart/form-data").find("boundary"), std::string::npos);
  EXPECT_NE(error("q=a", kMultipart).find("boundary"), std::string::npos);
  const std::string whole = Part("Content-Disposition: form-data; name=q", "a");
  for (size_t size = 5; size < whole.size() + 5; ++size) {
    EXPECT_NE(error((whole + "--a b").substr(0, size), kMultipart), "") << size;
  }
  EXPECT_NE(error(Part("Content-Disposition: form-data", "a") + "--a b--", kMultipart).find("name"),
            std::string::npos);
  EXPECT_NE(error("--a b\r\n\r\na\r\n--a b--", kMultipart).find("name"), std::string::npos);
  EXPECT_NE(
      error(Part("Content-Disposition: form-data; name=q; filename=f", "a") + "--a b--", kMultipart)
          .find("file"),
      std::string::npos);
}

TEST(FormBody, AJsonObjectIsNoForm) {
  EXPECT_FALSE(IsForm(" {\"q\": 1}", kUrlEncoded));
  EXPECT_FALSE(IsForm("q=1", "Application/JSON; charset=utf-8"));
  EXPECT_FALSE(IsForm("q=1", "application/x+json"));
  EXPECT_TRUE(IsForm("q={", kUrlEncoded));
  EXPECT_TRUE(IsForm("", ""));
  EXPECT_TRUE(IsForm("{", kMultipart));
}

}  // namespace
}  // namespace kvasir
