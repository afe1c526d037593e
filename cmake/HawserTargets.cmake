# Tests, fuzz targets, benchmarks and examples.
set(HAWSER_TEST_TIMEOUT_S 60)
if(HAWSER_SANITIZE)
  set(HAWSER_TEST_TIMEOUT_S 180)
endif()

# One gtest executable of many files; every TEST is a test of ctest, found when ctest starts.
# Files are compiled several at a time, and with little optimisation: headers take most of the time,
# and then code that runs once.
function(hawser_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL" "SOURCES;LINK")
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  target_compile_options(${name} PRIVATE -O1)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX "${arg_LABEL}." DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
    DISCOVERY_TIMEOUT 60 WORKING_DIRECTORY "${PROJECT_BINARY_DIR}"
    PROPERTIES TIMEOUT ${HAWSER_TEST_TIMEOUT_S} LABELS ${arg_LABEL} RUN_SERIAL ${arg_SERIAL})
endfunction()

function(hawser_tests)
  include(GoogleTest)
  set(tests_root "${PROJECT_SOURCE_DIR}/tests")

  # tests/support: code that several test executables share. Torch-free.
  file(GLOB support CONFIGURE_DEPENDS "${tests_root}/support/*.cpp")
  if(support)
    add_library(hawser_test_support STATIC ${support})
    target_include_directories(hawser_test_support PUBLIC "${PROJECT_SOURCE_DIR}" "${tests_root}")
    target_link_libraries(hawser_test_support PUBLIC hawser_agent GTest::gtest)
  else()
    add_library(hawser_test_support INTERFACE)
    target_link_libraries(hawser_test_support INTERFACE hawser_agent)
  endif()

  set_source_files_properties("${HAWSER_SOURCE_ROOT}/hawser/wire/corpus_test.cpp" PROPERTIES
    COMPILE_DEFINITIONS HAWSER_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  foreach(layer IN LISTS HAWSER_LAYERS)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${HAWSER_SOURCE_ROOT}/hawser/${layer}/*_test.cpp")
    hawser_gtest(${layer}_tests LABEL ${layer} SOURCES ${sources}
      LINK hawser_test_support hawser_${layer})
  endforeach()
  if(TARGET node_tests)
    hawser_use_api_pch(node_tests)
  endif()

  foreach(suite contract sim)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_root}/${suite}/*.cpp")
    hawser_gtest(${suite}_tests LABEL ${suite} SOURCES ${sources} LINK hawser_test_support hawser_agent)
  endforeach()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_root}/sim_refs/*.cpp")
  hawser_gtest(sim_refs_tests LABEL sim_refs SOURCES ${sources} LINK hawser_test_support hawser_refs)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_root}/sim_autograd/*.cpp")
  hawser_gtest(sim_autograd_tests LABEL sim_autograd SOURCES ${sources}
    LINK hawser_test_support hawser_autograd)

  if(HAWSER_WITH_TORCH)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_root}/process/*.cpp")
    # They kill, stop and time real processes: not beside other tests.
    hawser_gtest(process_tests SERIAL LABEL process SOURCES ${sources} LINK hawser_test_support hawser_node)
    if(sources)
      hawser_use_api_pch(process_tests)
    endif()
  endif()

  # The Python of the benchmarks has its tests beside it.
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/benchmarks/*_test.py")
  if(sources)
    find_program(HAWSER_PYTHON3 python3 REQUIRED)
    add_test(NAME benchmarks.python WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      COMMAND ${HAWSER_PYTHON3} -B -m unittest discover -s benchmarks -p "*_test.py")
    set_tests_properties(benchmarks.python PROPERTIES TIMEOUT 60 LABELS benchmarks)
  endif()
  if(HAWSER_BUILD_BENCHMARKS AND TARGET hawser)
    find_program(HAWSER_PYTHON3 python3 REQUIRED)
    add_test(NAME benchmarks.jobs WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      COMMAND ${HAWSER_PYTHON3} -B benchmarks/run.py --brief --build "${PROJECT_BINARY_DIR}")
    set_tests_properties(benchmarks.jobs PROPERTIES TIMEOUT 300 LABELS benchmarks RUN_SERIAL ON)
  endif()

  if(TARGET hawser_native)
    hawser_python_tests()
  endif()

  foreach(suite layers install)
    if(EXISTS "${tests_root}/${suite}/CMakeLists.txt")
      add_subdirectory("${tests_root}/${suite}" "${PROJECT_BINARY_DIR}/tests/${suite}")
    endif()
  endforeach()
endfunction()

# src/hawser/**/<stem>_fuzz.cpp. With HAWSER_FUZZ a libFuzzer executable; otherwise an executable
# that replays the corpus in tests/fuzz/<stem>_fuzz, run by ctest.
function(hawser_fuzz_targets)
  file(GLOB_RECURSE fuzz_sources CONFIGURE_DEPENDS "${HAWSER_SOURCE_ROOT}/hawser/*_fuzz.cpp")
  foreach(source IN LISTS fuzz_sources)
    get_filename_component(stem "${source}" NAME_WE)
    file(RELATIVE_PATH relative "${HAWSER_SOURCE_ROOT}/hawser" "${source}")
    string(REGEX MATCH "^[^/]+" layer "${relative}")
    if(NOT layer IN_LIST HAWSER_LAYERS)
      continue()
    endif()
    add_executable(${stem} "${source}")
    target_link_libraries(${stem} PRIVATE hawser_${layer})
    if(HAWSER_FUZZ)
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
      set_property(GLOBAL APPEND PROPERTY HAWSER_FUZZ_TARGETS ${stem})
    else()
      target_sources(${stem} PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cpp")
      add_test(NAME fuzz_replay.${stem} COMMAND ${stem} "${PROJECT_SOURCE_DIR}/tests/fuzz/${stem}")
      set_tests_properties(fuzz_replay.${stem} PROPERTIES TIMEOUT ${HAWSER_TEST_TIMEOUT_S} LABELS fuzz)
    endif()
  endforeach()
endfunction()

# benchmarks/*.cpp: one executable each, on libhawser. benchmarks/limits: what the machine itself
# can do, without hawser and without torch.
function(hawser_benchmarks)
  set(root "${PROJECT_SOURCE_DIR}/benchmarks")
  if(EXISTS "${root}/limits/CMakeLists.txt")
    add_subdirectory("${root}/limits" "${PROJECT_BINARY_DIR}/benchmarks/limits")
  endif()

  if(NOT TARGET hawser)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${root}/*.cpp")
  foreach(source IN LISTS sources)
    get_filename_component(stem "${source}" NAME_WE)
    add_executable(bench_${stem} "${source}")
    set_target_properties(bench_${stem} PROPERTIES
      OUTPUT_NAME ${stem} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")
    target_include_directories(bench_${stem} PRIVATE "${root}")
    target_link_libraries(bench_${stem} PRIVATE hawser $<TARGET_NAME_IF_EXISTS:limits>)
    hawser_use_api_pch(bench_${stem})
  endforeach()
endfunction()

# examples/cpp/*.cpp: one executable each, on libhawser.
function(hawser_examples)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/cpp/*.cpp")
  foreach(source IN LISTS sources)
    get_filename_component(stem "${source}" NAME_WE)
    add_executable(example_${stem} "${source}")
    set_target_properties(example_${stem} PROPERTIES
      OUTPUT_NAME ${stem} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
    target_link_libraries(example_${stem} PRIVATE hawser)
    hawser_use_api_pch(example_${stem})
  endforeach()
endfunction()

# hawser/_native: the package is put together in python/ of the build tree, so that it can be
# imported from there (PYTHONPATH) as it would be from an installed wheel.
function(hawser_python_module)
  if(NOT Python_EXECUTABLE AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    set(Python_EXECUTABLE "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  endif()
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  set(Python_EXECUTABLE "${Python_EXECUTABLE}" CACHE FILEPATH "The Python that the module is for")
  hawser_glob_sources(sources "${HAWSER_SOURCE_ROOT}/hawser/bindings")
  Python_add_library(hawser_native MODULE WITH_SOABI ${sources})
  set(package "${PROJECT_BINARY_DIR}/python/hawser")
  set_target_properties(hawser_native PROPERTIES
    UNITY_BUILD ON
    UNITY_BUILD_BATCH_SIZE 4
    OUTPUT_NAME _native
    LIBRARY_OUTPUT_DIRECTORY "${package}"
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    BUILD_RPATH "${PROJECT_BINARY_DIR};${HAWSER_TORCH_ROOT}/lib"
    INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
  target_link_libraries(hawser_native PRIVATE hawser hawser::torch_python)
  target_compile_definitions(hawser_native PRIVATE PYBIND11_DETAILED_ERROR_MESSAGES)
  file(MAKE_DIRECTORY "${package}")
  set(build_info "${package}/_build_info.py")
  file(CONFIGURE OUTPUT "${build_info}" @ONLY
    CONTENT [[
"""What this build was made against. Generated."""

TORCH_VERSION = "@HawserTorch_VERSION@"
]])
  if(HAWSER_WHEEL)
    install(TARGETS hawser_native LIBRARY DESTINATION .)
    install(FILES "${build_info}" DESTINATION .)
  endif()
  file(GLOB entries CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/hawser/*")
  foreach(entry IN LISTS entries)
    get_filename_component(name "${entry}" NAME)
    if(NOT name STREQUAL "__pycache__")
      file(CREATE_LINK "${entry}" "${package}/${name}" SYMBOLIC)
    endif()
  endforeach()
endfunction()

# tests/python and tests/regress: pytest, a file at a time.
function(hawser_python_tests)
  foreach(suite python regress)
    file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${suite}/test_*.py")
    foreach(file IN LISTS files)
      get_filename_component(stem "${file}" NAME_WE)
      string(REGEX REPLACE "^test_" "" stem "${stem}")
      add_test(NAME ${suite}.${stem} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
        COMMAND ${Python_EXECUTABLE} -B -m pytest -q -p no:cacheprovider "${file}")
      # They kill, time and count real processes: not beside other tests.
      set_tests_properties(${suite}.${stem} PROPERTIES TIMEOUT 300 LABELS ${suite} RUN_SERIAL ON
        ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;HAWSER_EXAMPLES=${PROJECT_BINARY_DIR}/examples")
    endforeach()
  endforeach()

  add_test(NAME conformance.suites
    COMMAND ${Python_EXECUTABLE} -B "${PROJECT_SOURCE_DIR}/tests/conformance/check.py")
  set_tests_properties(conformance.suites PROPERTIES TIMEOUT 1200 LABELS conformance RUN_SERIAL ON
    ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python")

  # Every example is run: hello.cpp by tests/install, worker_and_trainer.cpp by call_cpp.py.
  if(HAWSER_BUILD_EXAMPLES)
    foreach(stem demo train)
      add_test(NAME examples.cpp_${stem} COMMAND example_${stem})
      set_tests_properties(examples.cpp_${stem} PROPERTIES TIMEOUT 120 LABELS examples)
    endforeach()
  endif()
  set(call_cpp_arguments $<TARGET_FILE:example_worker_and_trainer>)
  set(actor_learner_arguments --lose-one)
  set(train_arguments --trace "${PROJECT_BINARY_DIR}/demo.json")
  set(timeline_arguments --output "${PROJECT_BINARY_DIR}/timeline.json")
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/python/*.py")
  foreach(file IN LISTS files)
    get_filename_component(stem "${file}" NAME_WE)
    if(stem STREQUAL "call_cpp" AND NOT HAWSER_BUILD_EXAMPLES)
      continue()
    endif()
    add_test(NAME examples.python_${stem} COMMAND ${Python_EXECUTABLE} -B "${file}" ${${stem}_arguments})
    set_tests_properties(examples.python_${stem} PROPERTIES TIMEOUT 120 LABELS examples RUN_SERIAL ON
      ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python")
  endforeach()
endfunction()
