# The CUDA backend (src/cuda), if there is a CUDA compiler. HEARTH_CUDA: auto, on or off. HEARTH_CUDA_ARCHS:
# "auto" compiles for the GPUs of this machine; without one, PTX for Ampere (which every later GPU can compile)
# and code for Hopper. "all" compiles code for every supported architecture.
set(HEARTH_CUDA auto CACHE STRING "CUDA backend: auto, on or off")
set(HEARTH_CUDA_ARCHS auto CACHE STRING "auto, all, or a list such as 80;90a")
# A third of the time to compile, and slow kernels: scripts/test uses it on a machine that cannot run them.
option(HEARTH_CUDA_QUICK "Compile CUDA kernels quickly, only to check them; hearth warns if it runs them" OFF)

# CMake users write ON and OFF, so case does not matter.
string(TOLOWER "${HEARTH_CUDA}" cuda_choice)
if(NOT cuda_choice MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "expected HEARTH_CUDA to be auto, on or off, got \"${HEARTH_CUDA}\"")
endif()

set(hearth_cuda OFF)
if(NOT cuda_choice STREQUAL off AND NOT HEARTH_SANITIZE)
  find_program(hearth_nvcc nvcc PATHS /usr/local/cuda/bin)
  if(hearth_nvcc)
    set(hearth_cuda ON)
  elseif(cuda_choice STREQUAL on)
    message(FATAL_ERROR "expected nvcc on the PATH or in /usr/local/cuda/bin with HEARTH_CUDA=on")
  endif()
endif()

if(NOT hearth_cuda)
  target_sources(hearth_lib PRIVATE src/cuda/no_cuda.cpp)
  return()
endif()

if(HEARTH_CUDA_ARCHS STREQUAL all)
  set(archs 80-real 86-real 89-real 90a-real 100-real 120)
elseif(NOT HEARTH_CUDA_ARCHS STREQUAL auto)
  set(archs ${HEARTH_CUDA_ARCHS})
else()
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE caps ERROR_QUIET RESULT_VARIABLE failed)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" caps "${caps}")
  set(archs "")
  foreach(cap ${caps})
    string(REPLACE "." "" cap ${cap})
    string(REGEX REPLACE "^90$" "90a" cap ${cap})
    list(APPEND archs ${cap}-real)
  endforeach()
  list(REMOVE_DUPLICATES archs)
  if(NOT archs)
    set(archs 80-virtual 90a-real)
  endif()
endif()

set(CMAKE_CUDA_COMPILER ${hearth_nvcc})
set(CMAKE_CUDA_ARCHITECTURES 90a-real)  # for CMake's own compiler test
# This CMake does not know that this nvcc supports C++20, and would add -std=c++17.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20")
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD_DEFAULT "")
# CMake 3.25.1, which Debian 12 has, marks CUDA::nvToolsExt as deprecated without asking whether it exists, and
# CUDA 13 has no such library. It does so only for projects that require CMake 3.25.
set(required ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${required})

set(quick_options "")
if(HEARTH_CUDA_QUICK)
  include(CheckCompilerFlag)
  check_compiler_flag(CUDA --Ofast-compile=max hearth_nvcc_compiles_quickly)
  if(hearth_nvcc_compiles_quickly)
    set(quick_options --Ofast-compile=max)
    set_source_files_properties(src/cuda/backend.cpp PROPERTIES
      COMPILE_DEFINITIONS HEARTH_CUDA_QUICK SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endif()

file(GLOB_RECURSE cuda_host CONFIGURE_DEPENDS src/cuda/*.cpp)
list(FILTER cuda_host EXCLUDE REGEX "/(no_cuda|no_hopper)\\.cpp$")
target_sources(hearth_lib PRIVATE ${cuda_host})
target_include_directories(hearth_lib SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(hearth_lib PRIVATE HEARTH_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
target_link_libraries(hearth_lib PUBLIC CUDA::cudart_static)

# wgmma and TMA exist only on Hopper; the other kernels are compiled for every requested architecture.
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS src/cuda/*.cu)
set(hopper_kernels ${cuda_kernels})
list(FILTER hopper_kernels INCLUDE REGEX "/(flash_hopper[^/]*|gemm_rows64|gemm_stream[^/]*|gemm_hopper|gemm_grouped_hopper)\\.cu$")
list(FILTER cuda_kernels EXCLUDE REGEX "/(flash_hopper[^/]*|gemm_rows64|gemm_stream[^/]*|gemm_hopper|gemm_grouped_hopper)\\.cu$")
function(add_kernels name archs)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${archs}")
  target_include_directories(${name} PRIVATE src)
  target_compile_options(${name} PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
    $<$<BOOL:${HEARTH_WERROR}>:-Werror=all-warnings> ${quick_options})
  target_sources(hearth_lib PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
add_kernels(hearth_cuda_kernels "${archs}" ${cuda_kernels})
if(hopper_kernels AND archs MATCHES 90a)
  add_kernels(hearth_cuda_hopper 90a-real ${hopper_kernels})
else()
  target_sources(hearth_lib PRIVATE src/cuda/attention/hopper/no_hopper.cpp)
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${archs}")
