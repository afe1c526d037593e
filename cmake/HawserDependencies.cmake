# Third-party packages, each behind one target. docs/dependencies.md says why each is here.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)

# Asio is used header-only and without Boost.
find_path(HAWSER_ASIO_INCLUDE_DIR asio.hpp REQUIRED)
mark_as_advanced(HAWSER_ASIO_INCLUDE_DIR)
add_library(hawser_asio INTERFACE)
add_library(hawser::asio ALIAS hawser_asio)
target_include_directories(hawser_asio SYSTEM INTERFACE ${HAWSER_ASIO_INCLUDE_DIR})
# Asio 1.22 finds std::aligned_alloc only in files that include a standard header before it. Files that
# disagree would free what the other one newed.
target_compile_definitions(hawser_asio INTERFACE
  ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_DISABLE_STD_ALIGNED_ALLOC)
target_link_libraries(hawser_asio INTERFACE Threads::Threads)

# FlatBuffers: the headers and the compiler; its library is not linked.
find_path(HAWSER_FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h REQUIRED)
find_program(HAWSER_FLATC flatc REQUIRED)
mark_as_advanced(HAWSER_FLATBUFFERS_INCLUDE_DIR HAWSER_FLATC)
add_library(hawser_flatbuffers INTERFACE)
add_library(hawser::flatbuffers ALIAS hawser_flatbuffers)
target_include_directories(hawser_flatbuffers SYSTEM INTERFACE ${HAWSER_FLATBUFFERS_INCLUDE_DIR})

if(HAWSER_WITH_TORCH)
  # The interpreter is only asked where its torch package is.
  if(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    set(HAWSER_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has torch")
  endif()
  find_package(HawserTorch REQUIRED)
endif()

if(HAWSER_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
