# hawser_layer(), the generated headers, and the shared library made of all layers.
set(HAWSER_SOURCE_ROOT "${PROJECT_SOURCE_DIR}/src")
set(HAWSER_GENERATED_ROOT "${PROJECT_BINARY_DIR}/generated")
set(HAWSER_LAYERS "")        # every layer of this build, lowest first
set(HAWSER_TORCH_LAYERS "")  # those that include libtorch

# #include "hawser/base/version.h": the version, from the file VERSION.
configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in"
  "${HAWSER_GENERATED_ROOT}/hawser/base/version.h" @ONLY)

# Sources of a folder under src/hawser, recursively, without tests and fuzz targets.
function(hawser_glob_sources out folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cpp$")
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# A precompiled header for programs on the C++ API: hawser.h, and libtorch with it. It saves most of
# what such a file takes to compile. The layers themselves do without: a source file of theirs shows
# that its header compiles alone (tests/layers).
function(hawser_use_api_pch target)
  if(NOT HAWSER_PCH)
    return()
  endif()
  if(NOT TARGET hawser_api_pch)
    file(CONFIGURE OUTPUT "${HAWSER_GENERATED_ROOT}/api_pch.cpp" CONTENT "")
    add_library(hawser_api_pch OBJECT "${HAWSER_GENERATED_ROOT}/api_pch.cpp")
    target_link_libraries(hawser_api_pch PRIVATE hawser)
    target_precompile_headers(hawser_api_pch PRIVATE "${HAWSER_SOURCE_ROOT}/hawser/hawser.h")
  endif()
  target_precompile_headers(${target} REUSE_FROM hawser_api_pch)
endfunction()

# hawser_layer(<name> [TORCH] [DEPENDS <layers>] [LINK <targets>])
# A layer without sources is an INTERFACE library, so that its dependents need not know.
function(hawser_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "DEPENDS;LINK")
  if(arg_TORCH AND NOT HAWSER_WITH_TORCH)
    return()
  endif()
  set(target hawser_${name})
  hawser_glob_sources(sources "${HAWSER_SOURCE_ROOT}/hawser/${name}")
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} "${HAWSER_SOURCE_ROOT}" "${HAWSER_GENERATED_ROOT}")
  list(TRANSFORM arg_DEPENDS PREPEND hawser_)
  target_link_libraries(${target} ${scope} ${arg_DEPENDS} ${arg_LINK} Threads::Threads)
  if(arg_TORCH)
    target_link_libraries(${target} ${scope} hawser::torch)
    set(HAWSER_TORCH_LAYERS ${HAWSER_TORCH_LAYERS} ${name} PARENT_SCOPE)
  endif()
  set(HAWSER_LAYERS ${HAWSER_LAYERS} ${name} PARENT_SCOPE)
endfunction()

# #include "hawser/wire/protocol_generated.h", from src/hawser/wire/protocol.fbs.
function(hawser_generate_protocol layer)
  set(schema "${HAWSER_SOURCE_ROOT}/hawser/${layer}/protocol.fbs")
  file(GLOB found CONFIGURE_DEPENDS "${schema}")
  if(NOT found)
    return()
  endif()
  set(out_dir "${HAWSER_GENERATED_ROOT}/hawser/${layer}")
  set(header "${out_dir}/protocol_generated.h")
  add_custom_command(OUTPUT "${header}"
    COMMAND ${HAWSER_FLATC} --cpp --scoped-enums -o "${out_dir}" "${schema}"
    DEPENDS "${schema}"
    COMMENT "Generating protocol_generated.h"
    VERBATIM)
  add_custom_target(hawser_protocol DEPENDS "${header}")
  # An INTERFACE library takes no part in the build order by itself; everything that links it does.
  add_dependencies(hawser_${layer} hawser_protocol)
endfunction()

# libhawser.so: the objects of all layers.
function(hawser_shared_library)
  set(objects "")
  foreach(layer IN LISTS HAWSER_LAYERS)
    get_target_property(type hawser_${layer} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:hawser_${layer}>)
    endif()
  endforeach()
  if(NOT objects)
    return()
  endif()
  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  add_library(hawser SHARED ${objects})
  add_library(hawser::hawser ALIAS hawser)
  set_target_properties(hawser PROPERTIES
    LINKER_LANGUAGE CXX
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS "${exports}"
    INSTALL_RPATH "${HAWSER_TORCH_ROOT}/lib")
  if(HAWSER_WHEEL)
    # A wheel has no symbolic links, and torch is a neighbour of the package.
    set_target_properties(hawser PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  else()
    set_target_properties(hawser PROPERTIES VERSION ${PROJECT_VERSION})
  endif()
  target_compile_features(hawser PUBLIC cxx_std_20)
  target_include_directories(hawser PUBLIC
    "$<BUILD_INTERFACE:${HAWSER_SOURCE_ROOT}>"
    "$<BUILD_INTERFACE:${HAWSER_GENERATED_ROOT}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(hawser
    PUBLIC hawser::torch Threads::Threads
    PRIVATE OpenSSL::SSL OpenSSL::Crypto)
  # -z defs: a symbol that libtorch does not export is a link error, not an error at load time.
  target_link_options(hawser PRIVATE "LINKER:--version-script=${exports}" LINKER:-z,defs
    LINKER:-Bsymbolic-functions)
  if(TARGET hawser_protocol)
    add_dependencies(hawser hawser_protocol)
  endif()
endfunction()
