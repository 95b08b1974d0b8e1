# Optional libraries. One file of src/ uses each of them, PCRE2 two; if a library is missing, the file no_<name> beside
# it is compiled instead, which reports that when the feature is used. HEARTH_WITHOUT leaves out libraries that are
# installed, for example zlib;pcre2.
set(HEARTH_WITHOUT "" CACHE STRING "Libraries to leave out: zlib, zstd, curl, pcre2")

# use_library(NAME FOLDER FILE LIBRARY MISSING [INCLUDE_FOLDER]): LIBRARY is a target or a path.
function(use_library name folder file library missing)
  if((TARGET "${library}" OR EXISTS "${library}") AND NOT "${ARGN}" MATCHES NOTFOUND
      AND NOT name IN_LIST HEARTH_WITHOUT)
    target_sources(hearth_lib PRIVATE src/${folder}/${file}.cpp)
    target_include_directories(hearth_lib SYSTEM PRIVATE ${ARGN})
    target_link_libraries(hearth_lib PUBLIC ${library})
  else()
    target_sources(hearth_lib PRIVATE src/${folder}/no_${file}.cpp)
    message(STATUS "${name} was not found or left out: ${missing}")
  endif()
endfunction()

find_package(ZLIB QUIET)
use_library(zlib sys/compression gzip ZLIB::ZLIB "gzip files cannot be read")
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY zstd)
use_library(zstd sys/compression zstd "${ZSTD_LIBRARY}" "zstd files cannot be read" ${ZSTD_INCLUDE_DIR})
find_package(CURL 7.85 QUIET)  # the first version with CURLOPT_PROTOCOLS_STR
use_library(curl sys/https https CURL::libcurl "hearth data get cannot download")
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
use_library(pcre2 rewards regex "${PCRE2_LIBRARY}" "the reward regex: is refused" ${PCRE2_INCLUDE_DIR})
use_library(pcre2 text/tokenizer split_regex "${PCRE2_LIBRARY}"
  "tokenizers with other patterns than the known ones are refused" ${PCRE2_INCLUDE_DIR})
