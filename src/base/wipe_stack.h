// WipeUnusedStack: zeroes what calls that have returned left on the stack of this thread.
#pragma once

namespace kvasir {

// Zeroes the stack beyond the caller's frame: 64 KiB, or what the thread has left but a reserve. To
// be called by the outermost loop of a thread that reads texts, where its frames are shallow.
// Takes about 2 us.
void WipeUnusedStack();

}  // namespace kvasir
