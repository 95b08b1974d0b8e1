# compile_by_folder(TARGET [SOURCE...]): the sources of each folder under src/ become one translation unit,
# since headers are most of the cost of a short file; a subfolder is a unit of its own. The named sources stay
# separate. The debug preset compiles file by file, which checks that each file includes what it uses.
function(compile_by_folder target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${CMAKE_SOURCE_DIR}/src)
    if(HEARTH_UNITY AND NOT source IN_LIST ARGN AND path MATCHES "^([a-z].*)/[^/]+\\.cpp$")
      string(REPLACE "/" "_" group ${CMAKE_MATCH_1})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HEARTH_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
