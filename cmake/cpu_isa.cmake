# The kernels of src/cpu/isa are compiled once per instruction set, each with its own flags and namespace
# (HEARTH_ISA). cpu/isa_list.h, generated here, lists the sets of this build, worst to best;
# src/cpu/features.cpp chooses one at start. A set that only adds matrix instructions to a base set (base_<set>)
# has only products of its own.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(hearth_isas generic avx2 avxvnni avx512 avx512vnni avx512bf16)
  set(flags_generic "")
  set(flags_avx2 -march=x86-64-v3)
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12's AVX-512 headers trigger these two warnings; the other sets keep them on.
    list(APPEND flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  set(flags_avxvnni ${flags_avx2} -mavxvnni)
  set(flags_avx512vnni ${flags_avx512} -mavx512vnni)
  set(flags_avx512bf16 ${flags_avx512vnni} -mavx512bf16)
  set(flags_amx ${flags_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)
  set(base_avxvnni avx2)
  set(base_avx512vnni avx512)
  set(base_avx512bf16 avx512)
  set(base_amx avx512)
  if(NOT HEARTH_SANITIZE)  # the sanitizers do not see what a tile instruction reads and writes
    list(APPEND hearth_isas amx)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(hearth_isas neon neonbf16)
  set(flags_neon -march=armv8-a)
  set(flags_neonbf16 -march=armv8.2-a+fp16+dotprod+bf16+i8mm)
  set(base_neonbf16 neon)
else()
  set(hearth_isas generic)
  set(flags_generic "")
endif()

if(HEARTH_SANITIZE MATCHES thread)  # races do not depend on the vector width
  list(GET hearth_isas 0 hearth_isas)
endif()

# NaN and infinity must keep their meaning: no -ffast-math.
set(hearth_isa_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi)

file(GLOB_RECURSE isa_sources CONFIGURE_DEPENDS src/cpu/isa/*.cpp)
set(attention_sources ${isa_sources})
list(FILTER attention_sources INCLUDE REGEX "/attention[^/]*\\.cpp$")
set(isa_list "")
set(kernel_list "")
set(isa_objects "")
foreach(isa ${hearth_isas})
  string(APPEND isa_list " X(${isa})")
  if(base_${isa})
    string(APPEND kernel_list " X(${isa}, ${base_${isa}})")
    add_library(hearth_isa_${isa} OBJECT src/cpu/isa/gemm.cpp)
  else()
    string(APPEND kernel_list " X(${isa}, ${isa})")
    add_library(hearth_isa_${isa} OBJECT ${isa_sources})
  endif()
  target_include_directories(hearth_isa_${isa} PRIVATE src ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(hearth_isa_${isa} PRIVATE HEARTH_ISA=${isa})
  target_compile_options(hearth_isa_${isa} PRIVATE ${flags_${isa}} ${hearth_isa_flags})
  # Each half of attention defines its own `Work`, and takes long enough to compile alone.
  compile_by_folder(hearth_isa_${isa} ${attention_sources})
  target_sources(hearth_lib PRIVATE $<TARGET_OBJECTS:hearth_isa_${isa}>)
  list(APPEND isa_objects $<TARGET_OBJECTS:hearth_isa_${isa}>)
endforeach()

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/cpu/isa_list.h CONTENT
"// Generated: the instruction sets the CPU kernels were built for, worst to best.
#pragma once
#define HEARTH_FOR_EACH_ISA(X)${isa_list}
// (set, the set whose kernels it uses beside its own products)
#define HEARTH_FOR_EACH_KERNELS(X)${kernel_list}
")
target_include_directories(hearth_lib PUBLIC ${CMAKE_BINARY_DIR}/generated)

# If two of these objects shared a weak symbol, the linker could take it from the wider set.
if(HEARTH_TESTS AND NOT HEARTH_SANITIZE)
  add_test(NAME isa_symbols COMMAND ${CMAKE_SOURCE_DIR}/cmake/check_isa_symbols.sh
    ${CMAKE_NM} ${isa_objects} COMMAND_EXPAND_LISTS)
endif()
