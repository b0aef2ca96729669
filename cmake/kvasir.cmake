# Build rules shared by all folders: flags, kvasir_library(), its tests.

# ccache, where a build folder's first configuration finds it: installing it later compiles nothing again.
if(NOT DEFINED KVASIR_CCACHE)
  find_program(ccache ccache)
  set(KVASIR_CCACHE "${ccache}" CACHE INTERNAL "the ccache of this build folder, or ccache-NOTFOUND")
endif()
if(KVASIR_CCACHE)
  # The second: of a file that reads precompiled headers (below).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${KVASIR_CCACHE})
endif()

add_library(kvasir_flags INTERFACE)
target_include_directories(kvasir_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# Numerics portable-1 depends on these two: no contraction, no fast-math (docs/numerics.md).
target_compile_options(kvasir_flags INTERFACE
  -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror=return-type -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(kvasir_flags INTERFACE -Wno-restrict)  # GCC bug 105651: false positives
  # Its collector begins at 1 GiB instead of 128 MiB: the largest joined files take 30 -> 27 s, and 2 GiB of memory.
  cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR mib_each "${memory_mib} / ${cores}")
  if(mib_each GREATER_EQUAL 4096 AND KVASIR_JOIN)  # (clang-tidy, which does not know it, reads files alone)
    target_compile_options(kvasir_flags INTERFACE --param=ggc-min-heapsize=1048576)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(kvasir_flags INTERFACE -Werror=thread-safety)  # base/mutex.h
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # The lowest CPU we support: AVX2, FMA, F16C. AVX-512 code sits in separate files.
  target_compile_options(kvasir_flags INTERFACE -march=x86-64-v3)
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_flags INTERFACE
    -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # These checks take long to compile, and a null pointer ends the process anyway.
    -fno-sanitize=null
    # The library's own code is what is checked: checks of the tests' own take long to compile.
    $<$<BOOL:$<TARGET_PROPERTY:KVASIR_IS_TEST>>:-fno-sanitize=undefined>)
  target_link_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    # Linked statically, its operator new clashes with that of tests which count, or refuse, allocations.
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} --print-file-name=libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so
      OUTPUT_VARIABLE library OUTPUT_STRIP_TRAILING_WHITESPACE)
    cmake_path(GET library PARENT_PATH folder)
    target_link_options(kvasir_flags INTERFACE -shared-libsan LINKER:-rpath,${folder})
  endif()
  # Long random tests do fewer rounds there: these builds look for other bugs.
  target_compile_definitions(kvasir_flags INTERFACE KVASIR_SANITIZED)
endif()

if(KVASIR_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# With a sanitizer little is optimised, so reading headers is most of what the compiler does: these are compiled once
# for all files of -O0, and once for those of -O1 (`access_test`: 3.2 s of CPU, 6.8 without).
set(KVASIR_STANDARD_HEADERS <nlohmann/json.hpp> <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <chrono>
  <cmath> <condition_variable> <cstdint> <deque> <filesystem> <fstream> <functional> <future> <map> <memory> <optional>
  <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
if(KVASIR_SANITIZE AND KVASIR_TESTS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/headers.cc CONTENT "// Precompiled headers: cmake/kvasir.cmake.\n")
  foreach(headers kvasir_headers kvasir_headers_optimised)
    add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/headers.cc)
    target_link_libraries(${headers} PRIVATE kvasir_flags GTest::gtest)
  endforeach()
  target_compile_options(kvasir_headers PRIVATE -O0)
  target_precompile_headers(kvasir_headers PRIVATE <gtest/gtest.h> ${KVASIR_STANDARD_HEADERS})
  target_precompile_headers(kvasir_headers_optimised PRIVATE ${KVASIR_STANDARD_HEADERS})
endif()

# Sources of these folders, and the tests of each folder, are compiled joined: they nearly all read the same
# heavy headers. So names in unnamed namespaces are unique in a folder.
set(KVASIR_JOINED_FOLDERS jinja text chat grammar import model sampling schedule engine http access api server session
    hub plan cache backend cli eval base observe block policy tier remote events load testing)
set(KVASIR_JOINED_SOURCES 48)
set(KVASIR_JOINED_TESTS 8)
if(KVASIR_SANITIZE)
  set(KVASIR_JOINED_TESTS 24)  # nothing is optimised there: reading headers is most of what they take
endif()

# Nothing in these folders computes: what they do for a token takes microseconds beside its milliseconds.
# GCC takes a quarter less time for them so.
set(KVASIR_COLD_FOLDERS cli eval hub plan observe import engine http access api server session tier remote events jinja)

# Of them, those through which no request and no token goes, or seldom: a fifth less again.
set(KVASIR_COLDEST_FOLDERS cli eval hub plan observe access session remote events)

# With a sanitizer these are not optimised: instrumenting less code takes less time. (jinja's tests parse megabytes.)
set(KVASIR_UNOPTIMISED_FOLDERS ${KVASIR_COLD_FOLDERS})
list(REMOVE_ITEM KVASIR_UNOPTIMISED_FOLDERS jinja)

# Their sources are compiled for many targets, and read few headers.
set(KVASIR_KERNEL_FOLDERS simd format tensor attention)

# They read no bytes as other types: nothing for the check of alignment to see.
set(KVASIR_WITHOUT_CASTS jinja text chat grammar sampling schedule engine http access api server hub plan cli
    observe policy testing)

# Their tests start no thread: nothing for ThreadSanitizer to see.
set(KVASIR_SINGLE_THREADED simd format tensor attention import jinja plan hub)

# Nor do tests whose text has none of these: what names a thread, or something that starts one.
set(KVASIR_THREAD_WORDS
  "[Tt]hread|async|Engine|Tier|Server|Pool|Loop|Exporter|Lookup|Publisher|Redis|S3|Process|Queue|Storage|Socket")

# kvasir_threaded(OUT TESTS...): sets OUT to the tests that have one. Each change of a test configures anew.
function(kvasir_threaded out)
  set(threaded "")
  foreach(test ${ARGN})
    file(STRINGS ${test} found REGEX "${KVASIR_THREAD_WORDS}" LIMIT_COUNT 1)
    if(found)
      list(APPEND threaded ${test})
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(${out} ${threaded} PARENT_SCOPE)
endfunction()

# source_paths.h: where tests and benchmarks find their data. A header, not a definition of every file:
# another copy of the repository finds the others' objects in ccache.
set(KVASIR_SOURCE_PATHS ${PROJECT_BINARY_DIR}/source_paths)
file(CONFIGURE OUTPUT ${KVASIR_SOURCE_PATHS}/source_paths.h CONTENT [[
#pragma once
#define KVASIR_SOURCE_DIR "@PROJECT_SOURCE_DIR@"
#define KVASIR_SHARED_DIR KVASIR_SOURCE_DIR "/../shared"
]] @ONLY)

# These rooms compute numbers, or have tests that count allocations, which no sanitizer must disturb: their tests
# are compiled as `kvasir` is, too. All others are compiled once, for asan.
set(KVASIR_NUMBERS_FOLDERS simd format tensor attention backend model policy cache eval)

# kvasir_test(NAME SOURCES... LIBS... LABEL fast|all|slow TIMEOUT SECONDS): one gtest binary; each test in ctest,
# with a sanitizer each quarter of them. TIMEOUT: of one test, else 900.
function(kvasir_test name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT T_LABEL)
    set(T_LABEL fast)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900)
  endif()
  if(T_LABEL STREQUAL fast AND KVASIR_TESTS STREQUAL quick)
    set(T_LABEL quick)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBS} kvasir_flags GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${KVASIR_SOURCE_PATHS})
  set_target_properties(${name} PROPERTIES KVASIR_IS_TEST ON UNITY_BUILD ${KVASIR_JOIN} UNITY_BUILD_BATCH_SIZE ${KVASIR_JOINED_TESTS})
  # A test's own code runs once or is a plain reference: optimising it takes longer than it saves.
  if(KVASIR_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
    target_precompile_headers(${name} REUSE_FROM kvasir_headers)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(NOT KVASIR_SANITIZE)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS "${T_LABEL}" TIMEOUT ${T_TIMEOUT})
    return()
  endif()
  # Not a process for each test: with a sanitizer it takes 60 ms to start and end, two minutes of CPU for all. Rooms
  # with many files take long and begin first.
  list(LENGTH T_SOURCES files)
  foreach(shard RANGE 3)
    add_test(NAME ${name}.${shard} COMMAND ${name})
    set_tests_properties(${name}.${shard} PROPERTIES LABELS "${T_LABEL}" TIMEOUT 1800 COST ${files}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# kvasir_library(NAME DEPS...): static library kvasir_NAME from all *.cc of the folder, but EXCLUDE, and
# SOURCES; and the test binary NAME_test from its *_test.cc, which links TEST_DEPS too, when tests are on.
# TOGETHER: sources that share heavy headers with no other of the folder, joined with each other first.
function(kvasir_library name)
  cmake_parse_arguments(L "" "" "DEPS;EXCLUDE;SOURCES;TEST_DEPS;TOGETHER" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB tests CONFIGURE_DEPENDS *_test.cc)
  list(TRANSFORM L_TOGETHER PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(REMOVE_ITEM sources ${tests} ${L_EXCLUDE} ${L_TOGETHER})
  list(PREPEND sources ${L_TOGETHER})
  list(APPEND sources ${L_SOURCES})
  if(sources)
    add_library(kvasir_${name} STATIC ${sources})
    # Nothing that is installed names the folder where it was built.
    target_compile_options(kvasir_${name} PRIVATE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
    target_link_libraries(kvasir_${name} PUBLIC kvasir_flags ${L_DEPS})
    if(KVASIR_JOIN AND name IN_LIST KVASIR_JOINED_FOLDERS)
      set_target_properties(kvasir_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${KVASIR_JOINED_SOURCES})
      # GCC takes the unnamed namespace of a joined file for that of a header.
      target_compile_options(kvasir_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    endif()
    if(KVASIR_SANITIZE AND name IN_LIST KVASIR_WITHOUT_CASTS)
      target_compile_options(kvasir_${name} PRIVATE -fno-sanitize=alignment)
    endif()
    if(name IN_LIST KVASIR_COLD_FOLDERS)
      set(level -O1)
      if(name IN_LIST KVASIR_COLDEST_FOLDERS)
        set(level -Og)
      endif()
      target_compile_options(kvasir_${name} PRIVATE $<$<CONFIG:Release>:${level}>)
    endif()
    set(headers kvasir_headers_optimised)
    if(KVASIR_SANITIZE AND name IN_LIST KVASIR_UNOPTIMISED_FOLDERS)
      target_compile_options(kvasir_${name} PRIVATE -O0)
      set(headers kvasir_headers)
    endif()
    if(TARGET ${headers} AND NOT name IN_LIST KVASIR_KERNEL_FOLDERS)
      target_precompile_headers(kvasir_${name} REUSE_FROM ${headers})
    endif()
  else()
    add_library(kvasir_${name} INTERFACE)
    target_link_libraries(kvasir_${name} INTERFACE kvasir_flags ${L_DEPS})
  endif()
  set(test_libs kvasir_${name} ${L_TEST_DEPS})
  if(KVASIR_SANITIZE STREQUAL thread)
    if(name IN_LIST KVASIR_SINGLE_THREADED)
      return()
    endif()
    kvasir_threaded(tests ${tests})
  endif()
  if(tests AND name STREQUAL load)
    if(KVASIR_BENCH)  # which compiles the room
      kvasir_test(load_test SOURCES ${tests} LIBS ${test_libs} LABEL all)
    endif()
  elseif(tests AND (KVASIR_TESTS STREQUAL ON OR (KVASIR_TESTS STREQUAL quick AND name IN_LIST KVASIR_NUMBERS_FOLDERS)))
    kvasir_test(${name}_test SOURCES ${tests} LIBS ${test_libs})
  endif()
endfunction()

# kvasir_target_sources(OUT HEADER PREFIX TABLE TARGETS...): HEADER, compiled once for each of the targets that
# the CPU's family has. Sets OUT to sources PREFIX_TARGET.cc in the build folder that include it and nothing
# else. TABLE: "HEADER TYPE NAME" of what it defines, which is empty for a target that is left out.
# What the compiler gets for a target: KVASIR_OPTIONS_TARGET, and KVASIR_LANES_TARGET as definitions.
# KVASIR_TARGET_ID says which registers there are (simd/vec16-inl.h), KVASIR_VNNI whether one instruction
# sums four products of bytes (tensor/quant_ops-inl.h).
set(KVASIR_LANES_scalar KVASIR_TARGET_ID=0 KVASIR_VNNI=1)
set(KVASIR_LANES_avx2 KVASIR_TARGET_ID=1 KVASIR_VNNI=0)
set(KVASIR_LANES_avxvnni KVASIR_TARGET_ID=1 KVASIR_VNNI=1)
set(KVASIR_LANES_avx512 KVASIR_TARGET_ID=2 KVASIR_VNNI=0)
set(KVASIR_LANES_avx512vnni KVASIR_TARGET_ID=2 KVASIR_VNNI=1)
set(KVASIR_LANES_amx KVASIR_TARGET_ID=2 KVASIR_VNNI=1)
set(KVASIR_LANES_neon KVASIR_TARGET_ID=3 KVASIR_VNNI=1)
# The reference, and for CPUs that have nothing else: -O3 takes three times as long to compile.
set(KVASIR_OPTIONS_scalar -O1)
set(KVASIR_OPTIONS_avx2 "")
set(KVASIR_OPTIONS_avxvnni -mavxvnni)
set(KVASIR_OPTIONS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND KVASIR_OPTIONS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)  # bug 105593
endif()
set(KVASIR_OPTIONS_avx512vnni ${KVASIR_OPTIONS_avx512} -mavx512vnni)
set(KVASIR_OPTIONS_amx ${KVASIR_OPTIONS_avx512vnni} -mamx-tile -mamx-int8)
if(KVASIR_SANITIZE)
  # One narrow and one wide target are checked. The others touch the same memory and are left out (below), except
  # scalar: tests name it, and it takes minutes to instrument.
  list(APPEND KVASIR_OPTIONS_scalar -fno-sanitize=all)
  # What is undefined shows in the narrow one: with its checks the wide one takes 79 s to compile, without 11.
  foreach(target avx512 avx512vnni)
    list(APPEND KVASIR_OPTIONS_${target} -fno-sanitize=undefined)
  endforeach()
endif()
set(KVASIR_OPTIONS_pclmul -mpclmul)
set(KVASIR_OPTIONS_vpclmul256 -mpclmul -mvpclmulqdq)
set(KVASIR_OPTIONS_vpclmul512 ${KVASIR_OPTIONS_vpclmul256} ${KVASIR_OPTIONS_avx512})
set(KVASIR_OPTIONS_neon -march=armv8.2-a+dotprod)
set(KVASIR_TARGETS scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND KVASIR_TARGETS avx2 avxvnni avx512 avx512vnni amx pclmul vpclmul256 vpclmul512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND KVASIR_TARGETS neon)
endif()

# A first build waits for no kernels that this CPU does not use; packages and tests have all of them.
set(KVASIR_KERNELS all CACHE STRING "for which CPUs: all, or native (this one, and avx2)")
set(KVASIR_LEFT_OUT "")
if(KVASIR_SANITIZE)
  set(KVASIR_LEFT_OUT avxvnni avx512 amx)
  if(KVASIR_SANITIZE STREQUAL thread)  # which thread touches what does not depend on the target
    list(APPEND KVASIR_LEFT_OUT avx512vnni)
  endif()
elseif(KVASIR_KERNELS STREQUAL native AND CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL x86_64 AND NOT CMAKE_CROSSCOMPILING)
  file(STRINGS /proc/cpuinfo cpu REGEX "^flags" LIMIT_COUNT 1)
  set(KVASIR_LEFT_OUT scalar avxvnni avx512 avx512vnni amx)
  if(cpu MATCHES "avx512_vnni")
    list(REMOVE_ITEM KVASIR_LEFT_OUT avx512vnni)
    if(cpu MATCHES "amx_int8")
      list(REMOVE_ITEM KVASIR_LEFT_OUT amx)
    endif()
  elseif(cpu MATCHES "avx512dq")
    list(REMOVE_ITEM KVASIR_LEFT_OUT avx512)
  elseif(cpu MATCHES "avx_vnni")
    list(REMOVE_ITEM KVASIR_LEFT_OUT avxvnni)
  endif()
endif()

function(kvasir_target_sources out header prefix table)
  separate_arguments(table)
  set(left_out ${KVASIR_LEFT_OUT})
  if(NOT avx512vnni IN_LIST ARGN)
    list(REMOVE_ITEM left_out avx512)  # loops that all CPUs with AVX-512 share
  endif()
  set(sources "")
  foreach(target ${ARGN})
    if(NOT target IN_LIST KVASIR_TARGETS)
      continue()
    endif()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${prefix}_${target}.cc)
    if(target IN_LIST left_out AND table)
      list(GET table 0 declared)
      list(GET table 1 type)
      list(GET table 2 name)
      file(CONFIGURE OUTPUT ${file} CONTENT
        "#include \"${declared}\"\nnamespace kvasir::${target} {\nconst ${type} ${name} = {};\n}\n")
    else()
      file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${header}\"\n")
    endif()
    set_source_files_properties(${file} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "${KVASIR_OPTIONS_${target}}"
      COMPILE_DEFINITIONS "KVASIR_TARGET_NS=${target};${KVASIR_LANES_${target}}")
    list(APPEND sources ${file})
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
