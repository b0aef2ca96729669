#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/args.h"

namespace kvasir::cli {
namespace {

const std::vector<Flag> kConfigFlags = {{"port", "N", ""},
                                        {"model", "PATH", ""},
                                        {"share", "SHARE", ""},
                                        {"stop", "TEXT", "", FlagKind::kList},
                                        {"json", "", "", FlagKind::kSwitch},
                                        {"resume", "FILE", "", FlagKind::kOptional},
                                        {"trace", "FILE", "", FlagKind::kValue, "tracing"},
                                        {"config", "FILE", ""},
                                        {"help", "", "", FlagKind::kSwitch}};

class ArgsConfigTest : public testing::Test {
 protected:
  ArgsConfigTest() { std::filesystem::create_directories(folder_); }
  ~ArgsConfigTest() override { std::filesystem::remove_all(folder_); }

  std::string WriteConfig(const std::string& text) const {
    std::string path = folder_ / "config.json";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // Merges the text into `args_`. Returns "" or the error's message, whose code must be `code`.
  std::string Merge(const std::string& text, Code code = Code::kInvalidArgument) {
    const Status status = args_.MergeConfig(WriteConfig(text), kConfigFlags);
    if (status) return "";
    EXPECT_EQ(status.error().code, code) << text;
    return status.error().message;
  }
  // Returns the message, which names the file, without its beginning.
  std::string Complaint(const std::string& text) {
    const std::string message = Merge(text), begin = "--config: " + folder_.string();
    EXPECT_TRUE(message.starts_with(begin + "/config.json")) << message;
    return message.substr(std::min(message.size(), begin.size() + sizeof "/config.json" - 1));
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("args_config." + std::to_string(getpid()));
  Args args_;
};

TEST_F(ArgsConfigTest, ValuesAreThoseOfFlagsThatWereNotGiven) {
  using List = std::vector<std::string>;
  args_.Set("port", {"1"});
  EXPECT_EQ(Merge(R"({"port": 2, "model": "a\u00e9", "stop": ["x", ""], "json": true,
                      "resume": ""})"),
            "");
  EXPECT_EQ(args_.Text("port"), "1");
  EXPECT_FALSE(args_.IsFromConfig("port"));
  EXPECT_EQ(args_.Text("model"), "a\xc3\xa9");
  EXPECT_TRUE(args_.IsFromConfig("model"));
  EXPECT_EQ(args_.List("stop"), (List{"x", ""}));
  EXPECT_EQ(args_.List("json"), List{"true"});
  EXPECT_EQ(args_.List("resume"), List{""});
  EXPECT_FALSE(args_.Has("trace"));
}

TEST_F(ArgsConfigTest, AnEmptyObjectSetsNothing) {
  EXPECT_EQ(Merge("{}"), "");
  for (const Flag& flag : kConfigFlags) EXPECT_FALSE(args_.Has(flag.name)) << flag.name;
}

TEST_F(ArgsConfigTest, NumbersAreTakenAsTheirDigits) {
  const std::pair<const char*, const char*> numbers[] = {
      {"0", "0"}, {"-5", "-5"}, {"18446744073709551615", "18446744073709551615"}};
  for (const auto& [json, text] : numbers) {
    Args args;
    const Status status =
        args.MergeConfig(WriteConfig(std::string("{\"port\": ") + json + "}"), kConfigFlags);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(args.Text("port"), text);
  }
  EXPECT_EQ(Merge(R"({"resume": 7, "stop": "one"})"), "");
  EXPECT_EQ(args_.Text("resume"), "7");
  EXPECT_EQ(args_.List("stop"), std::vector<std::string>{"one"});
}

TEST_F(ArgsConfigTest, ASwitchThatIsFalseIsNotGiven) {
  EXPECT_EQ(Merge(R"({"json": false})"), "");
  EXPECT_FALSE(args_.Has("json"));
  EXPECT_FALSE(args_.IsFromConfig("json"));
  args_.Set("json", {"true"});
  EXPECT_EQ(Merge(R"({"json": false})"), "");
  EXPECT_TRUE(args_.Has("json"));
}

TEST_F(ArgsConfigTest, AValueOfAnotherTypeIsRefusedEvenWhenTheFlagWasGiven) {
  args_.Set("port", {"1"});
  const auto takes = [](std::string_view key, std::string_view what, std::string_view is) {
    return fmt::format(": key '{}' takes {}; it is {}", key, what, is);
  };
  const std::string value = "a string or a whole number",
                    list = "a string, or an array of at least one string";
  EXPECT_EQ(Complaint(R"({"port": true})"), takes("port", value, "a boolean"));
  EXPECT_EQ(Complaint(R"({"port": 1.5})"), takes("port", value, "1.5"));
  EXPECT_EQ(Complaint(R"({"port": 18446744073709551616})"),
            takes("port", value, "1.8446744073709552e+19"));
  EXPECT_EQ(Complaint(R"({"share": true})"), takes("share", "a string or a number", "a boolean"));
  EXPECT_EQ(Complaint(R"({"port": []})"), takes("port", value, "an empty array"));
  EXPECT_EQ(Complaint(R"({"port": {}})"), takes("port", value, "an empty object"));
  EXPECT_EQ(Complaint(R"({"port": null})"), takes("port", value, "null"));
  EXPECT_EQ(Complaint(R"({"port": "a\u0000"})"), takes("port", value, "a string"));
  EXPECT_EQ(Complaint(R"({"stop": []})"), takes("stop", list, "an empty array"));
  EXPECT_EQ(Complaint(R"({"stop": 7})"), takes("stop", list, "7"));
  EXPECT_EQ(Complaint(R"({"json": "true"})"), takes("json", "true or false", "a string"));
  EXPECT_EQ(Complaint(R"({"json": 1})"), takes("json", "true or false", "1"));
  EXPECT_EQ(Complaint(R"({"resume": true})"), takes("resume", "a string", "a boolean"));
  const std::pair<const char*, const char*> items[] = {
      {"[7]", "an array whose item 0 is 7"},
      {"[\"a\", 7]", "an array whose item 1 is 7"},
      {"[[\"a\"]]", "an array whose item 0 is an array"},
      {"[null]", "an array whose item 0 is null"},
      {"[\"a\\u0000\"]", "an array"}};
  for (const auto& [given, is] : items) {
    EXPECT_EQ(Complaint(fmt::format("{{\"stop\": {}}}", given)), takes("stop", list, is));
  }
}

TEST_F(ArgsConfigTest, AKeyIsAFlagWithoutItsDashes) {
  const std::pair<const char*, const char*> keys[] = {
      {"prot", "port"}, {"--port", "port"}, {"Port", "port"}, {"modle", "model"}, {"", ""},
      {"config", ""},   {"help", ""},       {"trance", ""},   {"zzzzzz", ""},     {"--", ""}};
  for (const auto& [key, nearest] : keys) {
    const std::string hint = *nearest == '\0' ? "" : fmt::format(" (did you mean '{}'?)", nearest);
    EXPECT_EQ(
        Complaint(fmt::format("{{\"{}\": 1}}", key)),
        fmt::format(" has the unknown key '{}'{}; keys are flags without the leading --, such "
                    "as kv-memory",
                    key, hint));
  }
}

TEST_F(ArgsConfigTest, AWrongValueIsNamedByItsFileAndKey) {
  EXPECT_EQ(Merge(R"({"port": "1.5", "share": 0.25})"), "");
  EXPECT_EQ(*args_.Float("share", {0, 1}, 1), 0.25f);
  EXPECT_EQ(
      args_.Uint("port", 0, 65535, 1).error().message,
      "--config: " + folder_.string() +
          "/config.json: key 'port': '1.5' is not valid; give a whole number from 0 to 65535");
  args_.Set("model", {"x"});
  EXPECT_EQ(Merge(R"({"model": "y"})"), "");
  EXPECT_EQ(args_.Written("model"), "--model");
}

TEST_F(ArgsConfigTest, AKeyThatIsThereTwiceIsRefused) {
  const std::string doubled = " has the key 'port' more than once; keep one";
  EXPECT_EQ(Complaint(R"({"port": 1, "port": 1})"), doubled);
  EXPECT_EQ(Complaint(R"({"port": 1, "json": true, "p\u006frt": null})"), doubled);
  EXPECT_EQ(Complaint(R"({"port": {"port": 1, "port": 2}})"),
            ": key 'port' takes a string or a whole number; it is an object");
}

TEST_F(ArgsConfigTest, AFlagOfAPartThatIsNotThereYetIsUnsupported) {
  EXPECT_EQ(Merge(R"({"trace": "f"})", Code::kUnsupported),
            "--trace: tracing is not available in this version; leave the flag out");
  EXPECT_EQ(Merge(R"({"trace": null})", Code::kUnsupported),
            "--trace: tracing is not available in this version; leave the flag out");
}

TEST_F(ArgsConfigTest, TextThatIsNoJsonObjectIsRefusedWithItsPlace) {
  const std::string rest = "; write {\"port\": 8080, ...}";
  const std::string comma = " (JSON has no comma after the last value)",
                    comment = " (JSON has no comments)";
  EXPECT_EQ(Complaint("{\n \"port\": 18080,}"),
            ": not valid JSON at line 2, byte 16" + comma + rest);
  EXPECT_EQ(Complaint("{\"stop\": [\"a\", ]}"),
            ": not valid JSON at line 1, byte 16" + comma + rest);
  EXPECT_EQ(Complaint("{\"port\": 1, // a port\n}"),
            ": not valid JSON at line 1, byte 13" + comment + rest);
  EXPECT_EQ(Complaint("# ports\n{}"), ": not valid JSON at line 1, byte 1" + comment + rest);
  EXPECT_EQ(Complaint("/* ports */ {}"), ": not valid JSON at line 1, byte 1" + comment + rest);
  EXPECT_EQ(Complaint(""), ": not valid JSON at line 1, byte 1" + rest);
  EXPECT_EQ(Complaint("{\"model\": \"\xff\"}"), ": not valid JSON at line 1, byte 12" + rest);
  EXPECT_EQ(Complaint(std::string("{}\0", 3)), ": not valid JSON at line 1, byte 3" + rest);
  EXPECT_EQ(Complaint("[]"), ": not a JSON object" + rest);
  EXPECT_EQ(Complaint("{\"port\": 1e999}"), ": a number is too large for a 64-bit float" + rest);
  EXPECT_EQ(Complaint("{\"port\":" + std::string(200, '[')),
            ": its JSON nests deeper than 128 levels" + rest);
}

TEST_F(ArgsConfigTest, TheConfigurationOfAModelIsRecognised) {
  const std::string model =
      " is the configuration of a model, and --config takes a file of flags, such as {\"port\": "
      "8080}; give the model's folder as --model ";
  EXPECT_EQ(Complaint(R"({"architectures": []})"), model + folder_.string());
  EXPECT_EQ(Complaint(R"({"model_type": "llama", "prot": 1})"), model + folder_.string());
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const Status status = args_.MergeConfig("config.json", kConfigFlags);
  std::filesystem::current_path(before);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "--config: config.json" + model + ".");
}

TEST_F(ArgsConfigTest, AFailureLeavesTheFlagsOnTheCommandLineAsTheyWere) {
  args_.Set("port", {"1"});
  EXPECT_NE(Merge(R"({"port": "2", "zzz": 1})"), "");
  EXPECT_EQ(args_.List("port"), std::vector<std::string>{"1"});
}

TEST_F(ArgsConfigTest, AFileOfAFlagIsARegularFileOfAtMost16MiB) {
  const std::string path = WriteConfig(std::string("a\0\xff", 3));
  EXPECT_EQ(ReadFlagFile("keys", path, "a file of keys"), std::string("a\0\xff", 3));
  const auto refused = [&](const std::string& file) {
    const Result<std::string> text = ReadFlagFile("keys", file, "a file of keys");
    if (text) return std::string("no error");
    EXPECT_EQ(text.error().code, Code::kInvalidArgument) << file;
    EXPECT_TRUE(text.error().message.starts_with("--keys: " + file)) << text.error().message;
    return text.error().message;
  };
  EXPECT_EQ(refused(folder_),
            "--keys: " + folder_.string() + ": is not a regular file; give a file of keys");
  EXPECT_NE(refused("/dev/zero").find("is not a regular file"), std::string::npos);
  EXPECT_TRUE(refused(folder_ / "none").ends_with("none: cannot open: No such file or directory"));
  EXPECT_NE(refused("").find("cannot open"), std::string::npos);
  std::filesystem::resize_file(path, 16 << 20);
  EXPECT_EQ(ReadFlagFile("keys", path, "a file of keys")->size(), size_t{16} << 20);
  std::filesystem::resize_file(path, (16 << 20) + 1);
  EXPECT_TRUE(refused(path).ends_with(": has 16777217 bytes; at most 16777216 are allowed"));
}

TEST_F(ArgsConfigTest, AMissingConfigNamesTheFlagAndTheFile) {
  const Status status = args_.MergeConfig(folder_ / "none.json", kConfigFlags);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_TRUE(status.error().message.starts_with("--config: " + (folder_ / "none.json").string()));
  EXPECT_TRUE(status.error().message.ends_with(": cannot open: No such file or directory"));
}

}  // namespace
}  // namespace kvasir::cli
