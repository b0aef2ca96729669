// KV_FUZZ_TARGET(NAME): what libFuzzer calls in NAME_fuzz, and fuzz_replay as Fuzz_NAME.
#pragma once

#ifdef KVASIR_FUZZ_REPLAY
#define KV_FUZZ_TARGET(name) extern "C" int Fuzz_##name
#else
#define KV_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput
#endif
