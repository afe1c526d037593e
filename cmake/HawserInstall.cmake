# cmake --install: libhawser.so, the headers, and what find_package(hawser) needs.
include(CMakePackageConfigHelpers)
set(hawser_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hawser")

if(HAWSER_WHEEL)
  set(namelink NAMELINK_SKIP)
endif()
install(TARGETS hawser EXPORT hawserTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ${namelink})
install(DIRECTORY "${HAWSER_SOURCE_ROOT}/hawser" "${HAWSER_GENERATED_ROOT}/hawser"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h"
  PATTERN "*_for_test.h" EXCLUDE PATTERN "bindings" EXCLUDE)
install(FILES "${HAWSER_SOURCE_ROOT}/hawser/wire/protocol.fbs"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/hawser" OPTIONAL)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT hawserTargets NAMESPACE hawser:: DESTINATION "${hawser_cmake_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/hawserConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/hawserConfig.cmake" INSTALL_DESTINATION "${hawser_cmake_dir}")
# Until 1.0 a new minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hawserConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/hawserConfig.cmake"
  "${PROJECT_BINARY_DIR}/hawserConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindHawserTorch.cmake"
  DESTINATION "${hawser_cmake_dir}")
