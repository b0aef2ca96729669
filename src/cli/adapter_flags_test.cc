#include "cli/adapter_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace kvasir::cli {
namespace {

Result<EngineOptions> Read(std::vector<std::string> arguments) {
  std::vector<Flag> flags = AdapterFlags();
  std::ranges::copy(ServeAdapterFlags(), std::back_inserter(flags));
  EngineOptions options;
  const auto args = ParseArgs("serve", flags, std::move(arguments));
  if (!args) return tl::unexpected(args.error());
  if (const Status read = ReadAdapterFlags(*args, &options); !read) {
    return tl::unexpected(read.error());
  }
  ReadServeAdapterFlags(*args, &options);
  return options;
}

TEST(AdapterFlags, NamePathsAndScales) {
  const auto options = Read({"--lora", "a.gguf,tuned=/x/b=c", "--lora", "./d=e", "--lora-scaled",
                             "f:0.5,g:h:-2", "--max-lora-rank", "16", "--max-loras", "9",
                             "--lora-memory", "3MiB", "--lora-dir", "/x"});
  ASSERT_TRUE(options) << options.error().text();
  const AdapterOptions& adapters = options->adapters;
  ASSERT_EQ(adapters.load.size(), 5u);
  EXPECT_EQ(adapters.load[0].path, "a.gguf");
  EXPECT_FALSE(adapters.load[0].name);
  EXPECT_EQ(adapters.load[0].scale, 1);
  EXPECT_EQ(adapters.load[1].name, "tuned");
  EXPECT_EQ(adapters.load[1].path, "/x/b=c");
  EXPECT_EQ(adapters.load[1].scale, 0);
  EXPECT_EQ(adapters.load[2].path, "./d=e");
  EXPECT_EQ(adapters.load[3].scale, 0.5);
  EXPECT_EQ(adapters.load[4].path, "g:h");
  EXPECT_EQ(adapters.load[4].scale, -2);
  EXPECT_EQ(adapters.max_rank, 16u);
  EXPECT_EQ(adapters.max_loaded, 9u);
  EXPECT_EQ(adapters.memory_bytes, 3u << 20);
  EXPECT_TRUE(adapters.loads_later);
}

TEST(AdapterFlags, AStartMayApplyNone) {
  const auto options = Read({"--lora", "a", "--lora-scaled", "b:2", "--lora-init-without-apply"});
  ASSERT_TRUE(options) << options.error().text();
  for (const AdapterSource& source : options->adapters.load) EXPECT_EQ(source.scale, 0);
  EXPECT_FALSE(options->adapters.loads_later);
}

TEST(AdapterFlags, WrongOnesAreNamed) {
  const auto expect = [](std::vector<std::string> arguments, const std::string& part) {
    const auto options = Read(std::move(arguments));
    ASSERT_FALSE(options) << part;
    EXPECT_EQ(options.error().code, Code::kInvalidArgument);
    EXPECT_NE(options.error().text().find(part), std::string::npos) << options.error().text();
  };
  expect({"--lora", "=x"}, "--lora: '=x' lacks a name");
  expect({"--lora", "x="}, "--lora: 'x=' lacks a path");
  expect({"--lora", "a,,b"}, "--lora: 'a,,b' names nothing");
  expect({"--lora-scaled", "a"}, "--lora-scaled: 'a' is not valid");
  expect({"--lora-scaled", "a:101"}, "--lora-scaled: 'a:101' is not valid");
  expect({"--lora-scaled", "a:nan"}, "--lora-scaled: 'a:nan' is not valid");
  expect({"--lora-scaled", "q=b:1"}, "--lora-scaled: 'q=b:1' has a name; give --lora q=b,");
  expect({"--max-lora-rank", "0"}, "--max-lora-rank");
  expect({"--max-loras", "257"}, "--max-loras");
}

}  // namespace
}  // namespace kvasir::cli
