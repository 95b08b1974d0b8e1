# Hardening of optimised builds without sanitizers: stack protectors, checked libc calls, a position-independent
# executable, and relocations that are read-only after start. The CPU kernels (cmake/cpu_isa.cmake) go without
# the first two: they read no input, and their loops take most of the time.
if(HEARTH_SANITIZE OR NOT CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo|MinSizeRel)$")
  return()
endif()
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckLinkerFlag)

check_cxx_compiler_flag(-fstack-protector-strong hearth_stack_protector)
check_cxx_compiler_flag(-fPIE hearth_pie)
check_linker_flag(CXX "-Wl,-z,relro,-z,now" hearth_relro)
# Level 3 needs g++ 12 or clang 9, and a libc that supports it: an older one warns and uses 2.
set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
check_cxx_source_compiles("
  #include <cstring>
  int main(int n, char** v) {
    char a[8];
    std::memset(a, n, __builtin_dynamic_object_size(a, 0));
    return *v == a;
  }" hearth_fortify_3)
unset(CMAKE_REQUIRED_FLAGS)

set(hardening -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$<IF:$<BOOL:${hearth_fortify_3}>,3,2>)
if(hearth_stack_protector)
  list(APPEND hardening -fstack-protector-strong)
endif()
foreach(target hearth_lib hearth)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${hardening}>")
endforeach()
foreach(isa ${hearth_isas})  # Ubuntu's g++ enables both by default
  target_compile_options(hearth_isa_${isa} PRIVATE -U_FORTIFY_SOURCE
    $<$<BOOL:${hearth_stack_protector}>:-fno-stack-protector>)
endforeach()

if(hearth_pie)
  set(host_targets hearth_lib hearth)
  foreach(isa ${hearth_isas})
    list(APPEND host_targets hearth_isa_${isa})
  endforeach()
  foreach(target ${host_targets})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIE>)
  endforeach()
  foreach(target hearth_cuda_kernels hearth_cuda_hopper)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE -Xcompiler=-fPIE)
    endif()
  endforeach()
  target_link_options(hearth PRIVATE -pie)
endif()
if(hearth_relro)
  target_link_options(hearth PRIVATE "LINKER:-z,relro,-z,now")
endif()

# If the compiler and the linker support all of it, a test checks the binary.
if(HEARTH_TESTS AND hearth_stack_protector AND hearth_pie AND hearth_relro)
  find_program(hearth_readelf readelf)
  if(hearth_readelf)
    add_test(NAME check.hardening COMMAND ${CMAKE_SOURCE_DIR}/cmake/check_hardening.sh
      ${hearth_readelf} $<TARGET_FILE:hearth>)
    set_tests_properties(check.hardening PROPERTIES LABELS unit)
  endif()
endif()
