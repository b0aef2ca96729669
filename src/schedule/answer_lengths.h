// AnswerLengths: how long answers are expected to be, learned from those that ended.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// The last kKept lengths of each tenant and of all tenants. Of tenant 0, which all without a number
// share, nothing is known alone: what others do would show. Memory: 1 KiB a tenant, reserved at
// construction. One thread at a time.
class AnswerLengths {
 public:
  static constexpr uint32_t kKept = 256;   // answers
  static constexpr uint32_t kEnough = 16;  // answers; fewer say nothing
  static constexpr double kMaxFactor = 2.0;

  // `unknown`: tokens that an answer is expected to have beyond what it has, where nothing is
  // known.
  AnswerLengths(uint32_t num_tenants, uint32_t unknown)
      : tenants_(num_tenants), unknown_(unknown) {}

  // Notes that an answer of a tenant ended by itself, after so many tokens. REQUIRES: tenant <
  // num_tenants.
  void Add(uint32_t tenant, uint32_t tokens);
  void Forget(uint32_t tenant) { tenants_[tenant] = {}; }
  // Returns the tokens that an answer which has `so_far` is expected to have in the end: the mean
  // of those that were longer, of the tenant's answers, or of all answers until the tenant has
  // kEnough of them; `unknown` more until there are kEnough. Times a factor that rises when running
  // requests ran out of memory, because then lengths were underestimated. More than so_far.
  // O(kKept).
  uint32_t Expected(uint32_t tenant, uint32_t so_far) const;
  // Returns the same by the tenant's answers alone, without the factor: what others do does not
  // show.
  uint32_t ExpectedOfTenant(uint32_t tenant, uint32_t so_far) const;
  // Returns whether Expected rests on answers that ended.
  bool knows(uint32_t tenant) const {
    return tenants_[tenant].size >= kEnough || all_.size >= kEnough;
  }
  // Returns whether it rests on answers of the tenant alone.
  bool knows_tenant(uint32_t tenant) const { return tenants_[tenant].size >= kEnough; }
  void RaiseFactor();
  double factor() const { return factor_; }

 private:
  struct Ring {
    std::array<uint32_t, kKept> lengths{};
    uint32_t size = 0, next = 0;
    void Add(uint32_t tokens);
    std::span<const uint32_t> all() const { return {lengths.data(), size}; }
  };

  double RestOf(const Ring& ring, uint32_t so_far) const;

  std::vector<Ring> tenants_;
  const uint32_t unknown_;
  Ring all_;
  double factor_ = 1.0;
};

}  // namespace kvasir
