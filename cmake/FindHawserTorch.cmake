# Finds libtorch inside an installed torch package and checks that it is the version hawser is
# written against. Also installed beside hawserConfig.cmake.
#
#   hawser::torch          libtorch, libtorch_cpu, libc10 and their headers (SYSTEM)
#   hawser::torch_python   libtorch_python, when the package has it
#
# Where it looks: HAWSER_TORCH_ROOT; else CMAKE_PREFIX_PATH (torch.utils.cmake_prefix_path is such a
# prefix); else HawserTorch_HINT; else the torch package that HAWSER_PYTHON (python3) imports.
#
# TorchConfig.cmake is not used: that of a CUDA wheel refuses to configure where no CUDA toolkit
# is installed, although nothing of it is needed here.
set(HawserTorch_REQUIRED_VERSION 2.13)

if(NOT DEFINED HAWSER_TORCH_ROOT)
  set(HAWSER_TORCH_ROOT "" CACHE PATH "Directory of the torch package (holds include/ and lib/)")
endif()
if(NOT HAWSER_TORCH_ROOT)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH HawserTorch_HINT)
    foreach(_root "${_prefix}" "${_prefix}/../..")
      if(NOT HAWSER_TORCH_ROOT AND EXISTS "${_root}/include/ATen/core/Tensor.h")
        set(HAWSER_TORCH_ROOT "${_root}")
      endif()
    endforeach()
  endforeach()
endif()
if(NOT HAWSER_TORCH_ROOT)
  if(NOT HAWSER_PYTHON)
    find_program(HAWSER_PYTHON python3)
  endif()
  if(HAWSER_PYTHON)
    execute_process(
      COMMAND ${HAWSER_PYTHON} -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _hawser_torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE _hawser_torch_rc)
    if(_hawser_torch_rc EQUAL 0)
      set(HAWSER_TORCH_ROOT "${_hawser_torch_root}")
    endif()
  endif()
endif()

if(HAWSER_TORCH_ROOT)
  get_filename_component(HAWSER_TORCH_ROOT "${HAWSER_TORCH_ROOT}" REALPATH)
  set(HawserTorch_INCLUDE_DIR "${HAWSER_TORCH_ROOT}/include")
  set(_hawser_torch_version_header "${HawserTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  if(EXISTS "${_hawser_torch_version_header}")
    file(STRINGS "${_hawser_torch_version_header}" _hawser_torch_defines
      REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
    string(REGEX REPLACE "[^0-9;]" "" _hawser_torch_numbers "${_hawser_torch_defines}")
    string(REPLACE ";" "." HawserTorch_VERSION "${_hawser_torch_numbers}")
  endif()
  foreach(_lib torch torch_cpu c10 torch_python)
    set(HawserTorch_${_lib} "${HAWSER_TORCH_ROOT}/lib/lib${_lib}.so")
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(HawserTorch
  REQUIRED_VARS HAWSER_TORCH_ROOT HawserTorch_INCLUDE_DIR
  VERSION_VAR HawserTorch_VERSION
  FAIL_MESSAGE "No torch package found. Pass -DHAWSER_TORCH_ROOT=<directory of the torch package>")

if(HawserTorch_FOUND AND NOT HawserTorch_VERSION MATCHES "^2\\.13(\\.|$)")
  message(FATAL_ERROR "hawser is written against libtorch ${HawserTorch_REQUIRED_VERSION}, "
    "${HAWSER_TORCH_ROOT} is '${HawserTorch_VERSION}'")
endif()

if(HawserTorch_FOUND AND NOT TARGET hawser::torch)
  foreach(_lib torch torch_cpu c10)
    add_library(hawser::imported_${_lib} SHARED IMPORTED)
    set_target_properties(hawser::imported_${_lib} PROPERTIES
      IMPORTED_LOCATION "${HawserTorch_${_lib}}")
  endforeach()
  add_library(hawser::torch INTERFACE IMPORTED)
  set_target_properties(hawser::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${HawserTorch_INCLUDE_DIR};${HawserTorch_INCLUDE_DIR}/torch/csrc/api/include"
    # The wheel is built with these, and its headers test them.
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES "hawser::imported_torch;hawser::imported_torch_cpu;hawser::imported_c10")
  if(EXISTS "${HawserTorch_torch_python}")
    add_library(hawser::torch_python SHARED IMPORTED)
    set_target_properties(hawser::torch_python PROPERTIES
      IMPORTED_LOCATION "${HawserTorch_torch_python}"
      INTERFACE_LINK_LIBRARIES hawser::torch)
  endif()
endif()
