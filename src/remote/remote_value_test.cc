#include "remote/remote_value.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/fault.h"
#include "base/rounds_for_test.h"
#include "remote/fleet_keys.h"
#include "remote/value_swaps_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

class RemoteValue : public testing::Test {
 protected:
  RemoteValue() { value_ = Seal(record_, kName); }
  ~RemoteValue() override { InjectFault(Fault::kNone); }
  std::vector<std::byte> Seal(const TestRecord& record, std::string_view name) const {
    std::vector<std::byte> value(RawValueBytes(shape_));
    RecordSalt salt;
    salt.fill(7);
    WriteValueFacts(shape_, identity_, record.Facts(), salt, value);
    EXPECT_EQ(SealValue(PlaceOf(name), record.payload, value, nullptr), value.size());
    return value;
  }
  // Seals the payload of `wrong` with the tag of the right one, as nothing but a fault does.
  std::vector<std::byte> SealWithTagOf(const TestRecord& right, const TestRecord& wrong) const {
    std::vector<std::byte> value = Seal(right, kName);
    RecordSalt salt;
    salt.fill(7);
    const AesKey key = ValueKey(random_, salt);
    const std::span<std::byte> sealed =
        std::span(value).subspan(kValueHeadBytes, value.size() - kValueHeadBytes - sizeof(AesTag));
    AesTag tag;
    std::memcpy(tag.data(), value.data() + value.size() - sizeof(tag), tag.size());
    const std::string beside =
        std::string(reinterpret_cast<const char*>(value.data()), kValueHeadBytes) +
        std::string(kName);
    const auto authenticated = std::as_bytes(std::span(beside));
    EXPECT_TRUE(AesGcmUnseal(key, 0, authenticated, sealed, sealed, tag));
    std::memcpy(sealed.last(kSmallPayload).data(), wrong.payload.data(), kSmallPayload);
    EXPECT_TRUE(AesGcmSeal(key, 0, authenticated, sealed, sealed, &tag));
    std::memcpy(value.data() + value.size() - sizeof(tag), tag.data(), tag.size());
    return value;
  }
  ValuePlace PlaceOf(std::string_view name) const { return {shape_, identity_, random_, name}; }
  bool Opens(std::span<const std::byte> value, const RecordFacts& facts,
             std::string_view name = kName) {
    return UnsealValue(PlaceOf(name), facts, value, payload_, nullptr);
  }

  static constexpr std::string_view kName = "kvasir/1/fleet/owner/0123";
  RecordShape shape_{.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload};
  Digest identity_ = TestRecord::Filled(1);
  AesKey random_ = TestRecord::Filled(2);
  TestRecord record_{0, 3, 0, kSmallTokens, kSmallPayload};
  std::vector<std::byte> value_, payload_ = std::vector<std::byte>(kSmallPayload);
};

TEST_F(RemoteValue, GivesBackWhatWasSealed) {
  EXPECT_TRUE(Opens(value_, record_.Facts()));
  EXPECT_EQ(payload_, record_.payload);
}

TEST_F(RemoteValue, IsUnsealedForNothingElse) {
  RecordFacts facts = record_.Facts();
  facts.parent[0] ^= 1;
  EXPECT_FALSE(Opens(value_, facts));
  facts = record_.Facts();
  facts.owner[31] ^= 1;
  EXPECT_FALSE(Opens(value_, facts));
  facts = record_.Facts();
  facts.name.part = 1;
  EXPECT_FALSE(Opens(value_, facts));
  std::vector<TokenId> tokens = record_.tokens;
  tokens.back() ^= 1;
  facts = record_.Facts();
  facts.tokens = tokens;
  EXPECT_FALSE(Opens(value_, facts));
  EXPECT_FALSE(Opens(value_, record_.Facts(), "kvasir/1/fleet/owner/0124")) << "swapped";
  random_[5] ^= 1;
  EXPECT_FALSE(Opens(value_, record_.Facts())) << "of another epoch or fleet";
  random_[5] ^= 1;
  identity_[9] ^= 1;
  EXPECT_FALSE(Opens(value_, record_.Facts())) << "of another model";
  identity_[9] ^= 1;
  EXPECT_TRUE(Opens(value_, record_.Facts()));
}

TEST_F(RemoteValue, NothingForgedOrSwappedIsUnsealed) {
  Random random(11);
  const TestRecord other(0, 4, 0, kSmallTokens, kSmallPayload);
  const std::vector<std::byte> theirs = Seal(other, kName);
  const int rounds = Rounds(1000000, 20000);
  constexpr uint64_t kForgeries = 4;
  std::array<int, kForgeries + kNumValueSwaps> tried = {};
  uint32_t opened = 0;
  for (int i = 0; i < rounds;) {
    std::vector<std::byte> value = value_;
    const uint64_t kind = random.Below(tried.size());
    switch (kind) {
      case 0:  // bits
        for (uint64_t k = 0; k <= random.Below(3); ++k) {
          value[random.Below(value.size())] ^= std::byte(1u << random.Below(8));
        }
        break;
      case 1:  // a piece of another one
        for (uint64_t at = random.Below(value.size()), n = 1 + random.Below(200);
             n > 0 && at < value.size(); ++at, --n) {
          value[at] = theirs[at];
        }
        break;
      case 2:
        value.resize(random.Below(value.size()));
        break;
      case 3:
        std::memcpy(value.data() + random.Below(value.size() - 8), "\0\0\0\0\0\0\0\0", 8);
        break;
      default:
        opened += OpensSwapped(ValueSwap(kind - kForgeries), random, PlaceOf(kName),
                               record_.Facts(), value, payload_, nullptr);
    }
    if (kind < kForgeries) {
      if (value == value_) continue;  // not a forgery
      opened += Opens(value, record_.Facts());
    }
    ++tried[kind];
    ++i;
  }
  EXPECT_EQ(opened, 0u) << "of " << rounds;
  for (size_t kind = 0; kind < tried.size(); ++kind) {
    EXPECT_GT(tried[kind], rounds / 10) << "of kind " << kind;
  }
  EXPECT_TRUE(Opens(value_, record_.Facts()));
}

// A member of the fleet whose memory flipped a bit before the payload was sealed.
TEST_F(RemoteValue, ThePayloadHasItsOwnTag) {
  std::vector<std::byte> value = value_;
  ASSERT_TRUE(Opens(value, record_.Facts()));
  TestRecord wrong = record_;
  wrong.payload[17] ^= std::byte{4};
  const std::vector<std::byte> sealed = SealWithTagOf(record_, wrong);
  EXPECT_FALSE(Opens(sealed, record_.Facts()));
  InjectFault(Fault::kSkippedInnerTag);
  EXPECT_TRUE(Opens(sealed, record_.Facts())) << "the test can fail";
}

TEST(FleetKeys, AnOwnersObjectIsOfItsNameAndFleet) {
  const FleetKeys keys(TestRecord::Filled(1)), others(TestRecord::Filled(2));
  const std::string name = keys.OwnerName(TestRecord::Owner(0));
  const std::string other = keys.OwnerName(TestRecord::Owner(1));
  EXPECT_NE(name, other);
  EXPECT_NE(name, others.OwnerName(TestRecord::Owner(0)));
  EXPECT_EQ(name, FleetKeys(TestRecord::Filled(1)).OwnerName(TestRecord::Owner(0)));
  EXPECT_EQ(name.size(), 9u + 32 + 1 + 32);
  const OwnerEpoch epoch{.epoch = 5, .random = TestRecord::Filled(3)};
  auto object = keys.SealOwner(name, epoch, RecordSalt{1});
  ASSERT_TRUE(object);
  const auto opened = keys.UnsealOwner(name, *object);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->epoch, 5u);
  EXPECT_EQ(opened->random, epoch.random);
  EXPECT_FALSE(keys.UnsealOwner(other, *object));
  EXPECT_FALSE(others.UnsealOwner(name, *object));
  EXPECT_FALSE(keys.UnsealOwner(name, std::span(*object).first(95)));
  for (size_t i = 0; i < object->size(); ++i) {
    (*object)[i] ^= std::byte{1};
    EXPECT_FALSE(keys.UnsealOwner(name, *object)) << i;
    (*object)[i] ^= std::byte{1};
  }
}

TEST(FleetKeys, NamesDependOnTheEpochAndTellNothing) {
  const RecordName name = TestRecord::Name(0, 0);
  RecordName part = name;
  part.part = 1;
  const std::string one = RemoteName("o", TestRecord::Filled(1), name);
  EXPECT_EQ(one.size(), 2u + 64);
  EXPECT_NE(one, RemoteName("o", TestRecord::Filled(2), name));
  EXPECT_NE(one, RemoteName("o", TestRecord::Filled(1), part));
  EXPECT_EQ(one, RemoteName("o", TestRecord::Filled(1), name));
  InjectFault(Fault::kUnkeyedName);
  EXPECT_EQ(RemoteName("o", TestRecord::Filled(1), name),
            RemoteName("o", TestRecord::Filled(2), name))
      << "the test can fail";
  InjectFault(Fault::kNone);
}

}  // namespace
}  // namespace kvasir
