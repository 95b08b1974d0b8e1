# compile_by_folder(TARGET [SOURCE...]): the sources of one folder become one translation unit, but for
# those named, which stay alone. Most of what a short file costs is its headers. The debug preset
# compiles file by file, which shows that each includes what it uses.
function(compile_by_folder target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    if(HEARTH_UNITY AND NOT source IN_LIST ARGN AND source MATCHES "([a-z]+)/[a-z0-9_]+\\.cpp$")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HEARTH_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
