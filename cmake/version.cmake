# build_info(): version and build facts compiled into the library.
target_compile_definitions(hearth_lib PRIVATE
  HEARTH_VERSION="${PROJECT_VERSION}" HEARTH_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
