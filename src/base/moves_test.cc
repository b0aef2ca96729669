#include "base/moves.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

// Counts itself while it has something to give back.
class Loan {
 public:
  Loan() = default;
  explicit Loan(int* open) : open_(open) { ++*open; }
  Loan(Loan&&) noexcept = default;
  Loan& operator=(Loan&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~Loan() {
    if (open_ != nullptr) --*open_;
  }
  bool is_empty() const { return open_ == nullptr; }

 private:
  MovedPointer<int> open_;
};

TEST(Moves, AssigningGivesBackWhatWasThereAndNothingElse) {
  int open = 0;
  Loan first(&open), second(&open);
  EXPECT_EQ(open, 2);
  first = std::move(second);
  EXPECT_EQ(open, 1);
  EXPECT_FALSE(first.is_empty());
  EXPECT_TRUE(second.is_empty());
  first = Loan();
  EXPECT_EQ(open, 0);
}

TEST(Moves, AssigningToItselfChangesNothing) {
  int open = 0;
  Loan loan(&open);
  Loan& same = loan;
  loan = std::move(same);
  EXPECT_EQ(open, 1);
  EXPECT_FALSE(loan.is_empty());
}

}  // namespace
}  // namespace kvasir
