// LruList: a list through its elements, the one used longest ago first.
#pragma once

#include "base/check.h"

namespace kvasir {

// The places before and after an element. An element is in one list for each link that it has, and
// must leave that list before it ends.
struct LruLink {
  LruLink() = default;
  LruLink(const LruLink&) = delete;
  LruLink& operator=(const LruLink&) = delete;
  ~LruLink() { KV_DCHECK(!is_linked()); }
  bool is_linked() const { return before != nullptr; }

  LruLink* before = nullptr;
  LruLink* after = nullptr;
};

// Owns no element and allocates nothing. T derives from Link, which derives from LruLink: one such
// class for each list that an element may be in. All calls O(1). One thread at a time.
template <typename T, typename Link = LruLink>
class LruList {
 public:
  LruList() { ends_.before = ends_.after = &ends_; }
  LruList(const LruList&) = delete;
  LruList& operator=(const LruList&) = delete;
  // Lets go of what is left.
  ~LruList() {
    while (!empty()) Remove(front());
    ends_.before = ends_.after = nullptr;
  }

  bool empty() const { return ends_.after == &ends_; }
  // Returns the one used longest ago. REQUIRES: !empty().
  T& front() { return Element(ends_.after); }
  // Makes the element the one used last, whether or not it is in the list. REQUIRES: it is in no
  // other list of this Link.
  void Use(T& element) {
    Link& link = element;
    if (link.is_linked()) Remove(element);
    link.before = ends_.before;
    link.after = &ends_;
    link.before->after = link.after->before = &link;
  }
  void Remove(T& element) {  // REQUIRES: it is in this list
    Link& link = element;
    link.before->after = link.after;
    link.after->before = link.before;
    link.before = link.after = nullptr;
  }

 private:
  static T& Element(LruLink* link) { return static_cast<T&>(static_cast<Link&>(*link)); }

  LruLink ends_;  // before: the last element, after: the first one
};

}  // namespace kvasir
