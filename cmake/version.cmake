# Build facts for `hearth info` and benchmark lines: version, build type and commit. The commit is looked up at
# every build and written only when it has changed.
target_compile_definitions(hearth_lib PRIVATE
  HEARTH_VERSION="${PROJECT_VERSION}" HEARTH_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
add_custom_target(hearth_commit BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/sys/commit.h
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR}
    -DHEADER=${CMAKE_BINARY_DIR}/generated/sys/commit.h -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  COMMENT "")
add_dependencies(hearth_lib hearth_commit)
