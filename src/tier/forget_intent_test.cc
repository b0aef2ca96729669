#include "tier/forget_intent.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr Secret kSecret{7};
constexpr StoreId kStore{9};

ForgetIntent SomeIntent() {
  ForgetIntent intent;
  intent.segments.push_back({.number = 3, .generation = 0x1122334455667788, .slots = {}});
  intent.segments.back().slots.assign(19, false);
  intent.segments.back().slots[0] = intent.segments.back().slots[18] = true;
  intent.segments.push_back({.number = 4, .generation = 5, .slots = std::vector<bool>(16, true)});
  return intent;
}

TEST(ForgetIntent, ReadsWhatWasWritten) {
  const auto read =
      DecodeForgetIntent(kSecret, kStore, EncodeForgetIntent(kSecret, kStore, SomeIntent()));
  ASSERT_TRUE(read);
  const ForgetIntent written = SomeIntent();
  ASSERT_EQ(read->segments.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read->segments[i].number, written.segments[i].number);
    EXPECT_EQ(read->segments[i].generation, written.segments[i].generation);
    EXPECT_EQ(read->segments[i].slots, written.segments[i].slots);
  }
}

TEST(ForgetIntent, RefusesAnyChange) {
  const std::string bytes = EncodeForgetIntent(kSecret, kStore, SomeIntent());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << (bit % 8));
    EXPECT_FALSE(DecodeForgetIntent(kSecret, kStore, changed)) << bit;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeForgetIntent(kSecret, kStore, bytes.substr(0, size))) << size;
  }
  EXPECT_FALSE(DecodeForgetIntent(kSecret, StoreId{8}, bytes));
  EXPECT_FALSE(DecodeForgetIntent(Secret{8}, kStore, bytes));
}

}  // namespace
}  // namespace kvasir
