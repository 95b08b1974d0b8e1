# The kernels of src/cpu/isa are compiled once per instruction set, each time with its own flags and
# into a namespace of its own (HEARTH_ISA). cpu/isa_list.h, generated here, names the sets built in,
# worst to best; src/cpu/features.cpp chooses one of them at start.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(hearth_isas generic avx2 avx512 avx512bf16)
  set(flags_generic "")
  set(flags_avx2 -march=x86-64-v3)
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  set(flags_amx ${flags_avx512bf16} -mamx-tile -mamx-bf16)
  if(NOT HEARTH_SANITIZE)  # the sanitizers do not see what a tile instruction reads and writes
    list(APPEND hearth_isas amx)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(hearth_isas neon neonbf16)
  set(flags_neon -march=armv8-a)
  set(flags_neonbf16 -march=armv8.2-a+fp16+dotprod+bf16+i8mm)
else()
  set(hearth_isas generic)
  set(flags_generic "")
endif()

# NaN and infinity keep their meaning: no -ffast-math.
set(hearth_isa_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
  -Wno-psabi -Wno-maybe-uninitialized)  # GCC 12's own intrinsics headers set the latter off

file(GLOB isa_sources CONFIGURE_DEPENDS src/cpu/isa/*.cpp)
set(isa_list "")
set(isa_objects "")
foreach(isa ${hearth_isas})
  string(APPEND isa_list " X(${isa})")
  if(NOT isa_sources)
    continue()
  endif()
  add_library(hearth_isa_${isa} OBJECT ${isa_sources})
  target_include_directories(hearth_isa_${isa} PRIVATE src ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(hearth_isa_${isa} PRIVATE HEARTH_ISA=${isa})
  target_compile_options(hearth_isa_${isa} PRIVATE ${flags_${isa}} ${hearth_isa_flags})
  target_sources(hearth_lib PRIVATE $<TARGET_OBJECTS:hearth_isa_${isa}>)
  list(APPEND isa_objects $<TARGET_OBJECTS:hearth_isa_${isa}>)
endforeach()

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/cpu/isa_list.h CONTENT
"// Generated: the instruction sets the CPU kernels were built for, worst to best.
#pragma once
#define HEARTH_FOR_EACH_ISA(X)${isa_list}
")
target_include_directories(hearth_lib PUBLIC ${CMAKE_BINARY_DIR}/generated)

# A weak symbol shared by two of these objects could be taken by the linker from the wider set.
if(isa_objects AND HEARTH_TESTS AND NOT HEARTH_SANITIZE)
  add_test(NAME isa_symbols COMMAND ${CMAKE_SOURCE_DIR}/cmake/check_isa_symbols.sh
    ${CMAKE_NM} ${isa_objects} COMMAND_EXPAND_LISTS)
endif()
