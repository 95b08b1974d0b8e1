#include "cpu/features.h"

#include <cstdlib>
#include <string>

#include "sys/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace hearth::inline cpu {
namespace {

#if defined(__x86_64__)

// Linux grants the 8 KiB of tile registers only on request; the grant covers all threads.
bool tiles_granted() {
  constexpr int arch_req_xcomp_perm = 0x1023, xfeature_xtiledata = 18;
  static const bool granted = syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_xtiledata) == 0;
  return granted;
}

bool amx() {  // tiles, and products of bf16 and int8
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1) && tiles_granted();
}

bool avx512_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1);
}

// A bit of EAX of CPUID leaf 7, subleaf 1.
bool has_more(int bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1);
}
constexpr int avx_vnni_bit = 4, avx512_bf16_bit = 5;

// The rest of x86-64-v3. Clang's __builtin_cpu_supports knows these names only in later versions.
bool f16c_movbe_lzcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const bool f16c = c >> 29 & 1, movbe = c >> 22 & 1;
  return f16c && movbe && __get_cpuid(0x80000001, &a, &b, &c, &d) && (c >> 5 & 1);
}

bool runs(std::string_view isa) {
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    f16c_movbe_lzcnt();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (isa == "avx2") return avx2;
  if (isa == "avx512") return avx512;
  const bool vnni = avx512 && avx512_vnni(), half = vnni && has_more(avx512_bf16_bit);
  if (isa == "avxvnni") return avx2 && has_more(avx_vnni_bit);
  if (isa == "avx512vnni") return vnni;
  if (isa == "avx512bf16") return half;
  if (isa == "amx") return half && amx();
  return isa == "generic";
}

#elif defined(__aarch64__)

bool runs(std::string_view isa) {
  const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  const bool half_and_dot = (cap & HWCAP_ASIMDHP) && (cap & HWCAP_ASIMDDP);
  if (isa == "neonbf16") return half_and_dot && (cap2 & HWCAP2_BF16) && (cap2 & HWCAP2_I8MM);
  return isa == "neon";
}

#else

bool runs(std::string_view isa) { return isa == "generic"; }

#endif

std::vector<Isa> built_isas() {
#define HEARTH_ITEM(isa) Isa::isa,
  return {HEARTH_FOR_EACH_ISA(HEARTH_ITEM)};
#undef HEARTH_ITEM
}

std::string names(const std::vector<Isa>& isas) {
  std::string r;
  for (Isa i : isas) r += (r.empty() ? "" : ", ") + std::string(name(i));
  return r;
}

}  // namespace

std::string_view name(Isa isa) {
  switch (isa) {
#define HEARTH_CASE(isa) \
  case Isa::isa:         \
    return #isa;
    HEARTH_FOR_EACH_ISA(HEARTH_CASE)
#undef HEARTH_CASE
  }
  return "?";
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> r;
  for (Isa i : built_isas())
    if (runs(name(i))) r.push_back(i);
  return r;
}

Isa best_isa() {
  const std::vector<Isa> usable = usable_isas();
  const char* wanted = std::getenv("HEARTH_ISA");
  if (!wanted || !*wanted) return usable.back();
  for (Isa i : usable)
    if (name(i) == wanted) return i;
  fail_usage("HEARTH_ISA", "expected an instruction set usable here ({}), got '{}'", names(usable),
             wanted);
}

}  // namespace hearth::inline cpu
