# Options, compiler flags, compiler cache and linker of the whole build.
include(CheckCXXCompilerFlag)

if(CMAKE_SOURCE_DIR STREQUAL PROJECT_SOURCE_DIR)
  set(hawser_is_top_level ON)
else()
  set(hawser_is_top_level OFF)
endif()

option(HAWSER_WITH_TORCH "Build the layers that need libtorch (tensor and above)" ON)
option(HAWSER_BUILD_PYTHON "Build the Python module (needs Python's headers)" ${hawser_is_top_level})
option(HAWSER_WHEEL "Install into a Python package, beside that of torch (for pyproject.toml)" OFF)
option(HAWSER_BUILD_TESTS "Build the tests" ${hawser_is_top_level})
option(HAWSER_BUILD_BENCHMARKS "Build the benchmarks" ${hawser_is_top_level})
option(HAWSER_BUILD_EXAMPLES "Build the examples" ${hawser_is_top_level})
option(HAWSER_DELIBERATE_FAULTS "Compile in the fault switches the simulation tests turn on" OFF)
option(HAWSER_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(HAWSER_WERROR "Treat warnings as errors" OFF)
option(HAWSER_PCH "Use a precompiled header for programs on the C++ API" ON)
set(HAWSER_SANITIZE "" CACHE STRING "Argument of -fsanitize= for everything, e.g. address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ ${CMAKE_CXX_COMPILER_VERSION} is too old, 12 is the oldest that works. "
    "Pass -DCMAKE_CXX_COMPILER=g++-12 if it is installed.")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)

# Every object is compiled with -fPIC, executables included: all targets then agree on the flags
# that gcc wants to be equal before it accepts a precompiled header.
# Nobody replaces single functions of libhawser.so, so its own calls need not go through the table
# that would allow it, and may be inlined.
add_compile_options(-fPIC -fno-semantic-interposition)
add_compile_options(-Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual)
if(HAWSER_WERROR)
  add_compile_options(-Werror)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Files compiled together count as headers, in which a nameless namespace would be a mistake.
  add_compile_options(-Wno-subobject-linkage)
endif()

if(HAWSER_SANITIZE)
  add_compile_options(-fsanitize=${HAWSER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HAWSER_SANITIZE})
  if(HAWSER_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize=vptr)  # opens pipes to look at memory; tests take them away
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # g++ 12 loses sight of variants and vectors here
  endif()
  if(HAWSER_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # fences are not modelled; what uses them says so itself
  endif()
endif()
if(HAWSER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HAWSER_FUZZ needs clang++ (use the fuzz preset)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(HAWSER_DELIBERATE_FAULTS)
  add_compile_definitions(HAWSER_DELIBERATE_FAULTS)
endif()

find_program(HAWSER_CCACHE ccache)
if(HAWSER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Depend mode: no preprocessor run on a hit. The sloppiness is what ccache asks for when
  # precompiled headers are in use. Paths are made relative, so that clones share what is cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${HAWSER_CCACHE})
endif()

find_program(HAWSER_MOLD mold)
if(HAWSER_MOLD)
  set(CMAKE_REQUIRED_LINK_OPTIONS -fuse-ld=mold)
  check_cxx_compiler_flag(-fuse-ld=mold HAWSER_LINKER_MOLD)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  if(HAWSER_LINKER_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()
