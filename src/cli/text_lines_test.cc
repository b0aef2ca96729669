#include "cli/text_lines.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/standard_streams_for_test.h"

namespace kvasir::cli {
namespace {

// Reads all lines as a command does: "PLACE: TEXT" each, and the error at the end.
std::vector<std::string> LinesOf(TextLines lines) {
  std::vector<std::string> all;
  const auto failed = [&](const Error& error) {
    all.push_back(fmt::format("error {}: {}", static_cast<int>(error.code), error.message));
    return all;
  };
  if (const Status opened = lines.Open(); !opened) return failed(opened.error());
  while (true) {
    const Result<std::optional<TextLine>> line = lines.Next();
    if (!line) return failed(line.error());
    if (*line) {
      all.push_back((*line)->place + ": " + (*line)->text);
      continue;
    }
    if (lines.at_end()) return all;
    if (const Status read = lines.Read(); !read) return failed(read.error());
  }
}

using Shown = std::vector<std::string>;

class TextLinesTest : public testing::Test {
 protected:
  TextLinesTest() { std::filesystem::create_directories(folder_); }
  ~TextLinesTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  // Returns the lines of one file with this text, without its name.
  Shown LinesOfText(std::string_view text) const {
    const std::string path = Write("a.txt", text), quoted = "'" + path + "' ";
    Shown lines = LinesOf(TextLines({path}));
    for (std::string& line : lines) {
      const size_t at = line.find(quoted);
      EXPECT_NE(at, line.npos) << line;
      if (at != line.npos) line.erase(at, quoted.size());
    }
    return lines;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("text_lines." + std::to_string(getpid()));
};

TEST_F(TextLinesTest, LinesEndWithLfOrCrLfAndTheLastOneNeedsNoEnd) {
  EXPECT_EQ(LinesOfText("a\nb\r\n\n\r\nlast"),
            (Shown{"line 1: a", "line 2: b", "line 3: ", "line 4: ", "line 5: last"}));
  EXPECT_EQ(LinesOfText("a\n"), Shown{"line 1: a"});
  EXPECT_EQ(LinesOfText("a\r"), Shown{"line 1: a"});
  EXPECT_EQ(LinesOfText("a"), Shown{"line 1: a"});
  EXPECT_EQ(LinesOfText("\n"), Shown{"line 1: "});
  EXPECT_EQ(LinesOfText("\n\n"), (Shown{"line 1: ", "line 2: "}));
  EXPECT_EQ(LinesOfText(""), Shown{});
}

TEST_F(TextLinesTest, OtherBytesAreOfTheLine) {
  EXPECT_EQ(LinesOfText("a\rb\n"), Shown{"line 1: a\rb"});
  EXPECT_EQ(LinesOfText("a\r\r\n"), Shown{"line 1: a\r"});
  EXPECT_EQ(LinesOfText(std::string_view("a\0b\n", 4)), Shown{std::string("line 1: a\0b", 11)});
  EXPECT_EQ(LinesOfText(" \ta \n"), Shown{"line 1:  \ta "});
  EXPECT_EQ(LinesOfText("\xe2\x80\xa8\x0b\x0c\n"), Shown{"line 1: \xe2\x80\xa8\x0b\x0c"});
}

TEST_F(TextLinesTest, AByteOrderMarkIsNoneOfTheText) {
  EXPECT_EQ(LinesOfText("\xEF\xBB\xBF"
                        "a\n\xEF\xBB\xBF"
                        "b\n"),
            (Shown{"line 1: a",
                   "line 2: \xEF\xBB\xBF"
                   "b"}));
  const std::string first = Write("1.txt", "a\n"), second = Write("2.txt",
                                                                  "\xEF\xBB\xBF"
                                                                  "b");
  EXPECT_EQ(LinesOf(TextLines({first, second})).back(), "'" + second + "' line 1: b");
}

TEST_F(TextLinesTest, FilesFollowEachOtherAndCountTheirOwnLines) {
  const std::string a = Write("a.txt", "1\n2"), empty = Write("b.txt", ""),
                    c = Write("c.txt", "3\n");
  EXPECT_EQ(LinesOf(TextLines({a, empty, c, a})),
            (Shown{"'" + a + "' line 1: 1", "'" + a + "' line 2: 2", "'" + c + "' line 1: 3",
                   "'" + a + "' line 1: 1", "'" + a + "' line 2: 2"}));
}

TEST_F(TextLinesTest, WithoutAFileTheLinesAreStandardInputs) {
  const Pipe pipe = PipeOf("a\nb");
  const Redirected input(STDIN_FILENO, pipe.read_end.fd());
  EXPECT_EQ(LinesOf(TextLines({})), (Shown{"line 1: a", "line 2: b"}));
}

TEST_F(TextLinesTest, ADashAmongFilesIsStandardInput) {
  const std::string a = Write("a.txt", "1\n");
  const Pipe pipe = PipeOf("2");
  const Redirected input(STDIN_FILENO, pipe.read_end.fd());
  EXPECT_EQ(LinesOf(TextLines({a, "-", a})),
            (Shown{"'" + a + "' line 1: 1", "'-' line 1: 2", "'" + a + "' line 1: 1"}));
}

TEST_F(TextLinesTest, ALineIsThereAsSoonAsItsEndIs) {
  const Pipe pipe;
  const Redirected input(STDIN_FILENO, pipe.read_end.fd());
  TextLines lines({});
  ASSERT_TRUE(lines.Open());
  EXPECT_EQ(lines.fd(), STDIN_FILENO);
  pipe.Write("first \xc3");  // a character may come in two reads
  ASSERT_TRUE(lines.Read());
  EXPECT_FALSE(lines.Next()->has_value());
  EXPECT_FALSE(lines.at_end());
  pipe.Write("\xa9\r\nsec");
  ASSERT_TRUE(lines.Read());
  EXPECT_EQ((*lines.Next())->text, "first \xc3\xa9");
  EXPECT_FALSE(lines.Next()->has_value());
  pipe.Write("ond\nthird\n");
  ASSERT_TRUE(lines.Read());
  EXPECT_EQ((*lines.Next())->text, "second");
  EXPECT_EQ((*lines.Next())->place, "line 3");
  EXPECT_FALSE(lines.Next()->has_value());
}

TEST_F(TextLinesTest, LinesOfAnyLengthUpToTheLimitAreWhole) {
  std::string text;
  Shown expected;
  for (const size_t size : {0, 1, 65535, 65536, 65537, 200000, 3}) {
    const std::string line(size, static_cast<char>('a' + expected.size()));
    text += line + "\n";
    expected.push_back(fmt::format("line {}: {}", expected.size() + 1, line));
  }
  EXPECT_TRUE(LinesOfText(text) == expected);
  const std::string largest(TextLines::kMaxBytes, 'x');
  EXPECT_TRUE(LinesOfText(largest + "\nb") == (Shown{"line 1: " + largest, "line 2: b"}));
  EXPECT_TRUE(LinesOfText(largest) == Shown{"line 1: " + largest});
}

TEST_F(TextLinesTest, ALineThatIsTooLongIsRefused) {
  const Shown refused = {"line 1: a",
                         "error 1: line 2 has more than 16777216 bytes; cut it into lines"};
  const std::string too_long(TextLines::kMaxBytes + 1, 'x');
  EXPECT_EQ(LinesOfText("a\n" + too_long + "\nb\n"), refused);
  EXPECT_EQ(LinesOfText("a\n" + too_long), refused);
}

TEST_F(TextLinesTest, ALineThatIsNotUtf8IsRefusedWithItsByte) {
  EXPECT_EQ(LinesOfText("a\nbc\xff\nd\n"),
            (Shown{"line 1: a", "error 1: line 2 is not UTF-8 at byte 2"}));
  EXPECT_EQ(LinesOfText("\xed\xa0\x80\n"), Shown{"error 1: line 1 is not UTF-8 at byte 0"});
  EXPECT_EQ(LinesOfText("a\xc3"), Shown{"error 1: line 1 is not UTF-8 at byte 1"});
  EXPECT_EQ(LinesOfText("a\xc3\n\xa9"), Shown{"error 1: line 1 is not UTF-8 at byte 1"});
}

TEST_F(TextLinesTest, AFileThatCannotBeReadIsNamed) {
  const std::string a = Write("a.txt", "1\n"), none = folder_ / "none";
  EXPECT_EQ(LinesOf(TextLines({a, none, a})),
            (Shown{"'" + a + "' line 1: 1",
                   "error 2: cannot open '" + none + "': No such file or directory"}));
  EXPECT_EQ(LinesOf(TextLines({""})), Shown{"error 2: cannot open '': No such file or directory"});
  EXPECT_EQ(LinesOf(TextLines({folder_})),
            Shown{"error 1: '" + folder_.string() + "' is a folder; give files"});
  const Descriptor only_written(open(a.c_str(), O_WRONLY | O_CLOEXEC));
  const Redirected input(STDIN_FILENO, only_written.fd());
  EXPECT_EQ(LinesOf(TextLines({})), Shown{"error 5: cannot read standard input: Bad file "
                                          "descriptor"});
}

}  // namespace
}  // namespace kvasir::cli
