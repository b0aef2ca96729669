# Writes OUT, the header with what `kvasir info` says about the build. Run as a script.
cmake_policy(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT}.new CONTENT "#pragma once

namespace kvasir::cli {
inline constexpr char kVersion[] = \"@VERSION@\";
inline constexpr char kCommit[] = \"@commit@\";
inline constexpr char kCompiler[] = \"@COMPILER@\";
inline constexpr char kBuildType[] = \"@BUILD_TYPE@\";
}  // namespace kvasir::cli
" @ONLY)
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
