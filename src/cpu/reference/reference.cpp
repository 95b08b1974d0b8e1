// The reference backend's table, its memory, and conversions between tensors and vectors of double.
#include "cpu/reference/reference.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "core/fp8.h"
#include "cpu/fp8.h"
#include "cpu/reference/reference_kernels.h"
#include "sys/error.h"

namespace hearth::reference {
namespace {

template <class T>
Doubles load_as(Tensor t) {
  Doubles x(size_t(t.numel()));
  for (size_t i = 0; i < x.size(); ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      x[i] = double(t.as<T>()[i]);
    else
      x[i] = double(float(t.as<T>()[i]));
  }
  return x;
}

template <class T>
void store_as(Tensor t, const Doubles& x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      t.as<T>()[i] = T(x[i]);
    else
      t.as<T>()[i] = T(float(x[i]));
  }
}

}  // namespace

Doubles load(Tensor t) {
  if (!t) return {};
  switch (t.dtype) {
    case DType::f64:
      return load_as<double>(t);
    case DType::f32:
      return load_as<float>(t);
    case DType::bf16:
      return load_as<bf16>(t);
    case DType::f16:
      return load_as<f16>(t);
    case DType::e4m3:
      return load_as<e4m3>(t);
    case DType::e5m2:
      return load_as<e5m2>(t);
    default:
      break;
  }
  fail("reference", "expected a float tensor, got {} {}", to_string(t.dtype), to_string(t.shape));
}

void store(Tensor t, const Doubles& x) {
  if (!t) return;
  if (int64_t(x.size()) != t.numel())
    fail("reference", "expected an output of {} elements, got shape {}", x.size(),
         to_string(t.shape));
  switch (t.dtype) {
    case DType::f64:
      return store_as<double>(t, x);
    case DType::f32:
      return store_as<float>(t, x);
    case DType::bf16:
      return store_as<bf16>(t, x);
    case DType::f16:
      return store_as<f16>(t, x);
    default:
      break;
  }
  fail("reference", "expected a float output, got {} {}", to_string(t.dtype), to_string(t.shape));
}

double as_stored(double x, Tensor t) {
  if (!t) return x;
  switch (t.dtype) {
    case DType::f32:
      return float(x);
    case DType::bf16:
      return float(bf16(float(x)));
    case DType::f16:
      return float(f16(float(x)));
    default:
      return x;
  }
}

std::vector<int32_t> load_ints(Tensor t) {
  if (!t) return {};
  if (t.dtype != DType::i32)
    fail("reference", "expected an i32 tensor, got {} {}", to_string(t.dtype), to_string(t.shape));
  return {t.as<int32_t>(), t.as<int32_t>() + t.numel()};
}

Scalars load_scalars(Tensor t) {
  Scalars s;
  if (t) std::memcpy(&s, t.data, sizeof s);
  return s;
}

double keep_factor(const Scalars& s, float p, uint32_t salt, int64_t i) {
  if (p == 0) return 1;
  return random_word(s, salt, uint64_t(i)) < drop_threshold(p) ? 0 : 1 / (1 - double(p));
}

}  // namespace hearth::reference

namespace hearth::inline cpu {

namespace {

constexpr auto alignment = std::align_val_t(256);

int64_t memory(int pages) { return int64_t(sysconf(pages)) * int64_t(sysconf(_SC_PAGESIZE)); }

class ReferenceBackend : public Backend {
 public:
  const Kernels& kernels() const override { return reference_kernels(); }
  // The kernels run at once and ignore the stream.
  Stream& stream() override { return stream_; }
  std::string describe() const override { return "reference, 1 thread"; }

  std::byte* allocate(int64_t bytes, const std::string& what) override {
    // Check first: Linux overcommits memory, and kills a process that uses more than there is.
    const int64_t have = memory(_SC_PHYS_PAGES);
    void* p = bytes > have ? nullptr : ::operator new(size_t(bytes), alignment, std::nothrow);
    if (!p)
      fail("reference", "expected {} bytes for {}, got a machine of {} bytes", bytes, what, have);
    return static_cast<std::byte*>(std::memset(p, 0, size_t(bytes)));
  }
  void release(std::byte* p, int64_t) override { ::operator delete(p, alignment); }
  void upload(std::byte* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, size_t(bytes));
  }
  void download(void* host, const std::byte* device, int64_t bytes) override {
    std::memcpy(host, device, size_t(bytes));
  }
  void synchronize() override {}
  int64_t free_bytes() const override { return memory(_SC_AVPHYS_PAGES); }
  bool runs(DType d) const override { return is_float(d); }

 private:
  Stream stream_;
};

}  // namespace

const Kernels& reference_kernels() {
#define HEARTH_REFERENCE_KERNEL(name, Args) .name = reference::name,
  static const Kernels table{.name = "reference",
                             .gemm_quantised = reference::gemm_quantised,
                             .quantise_fp8 = reference::quantise_fp8,
                             .advance_fp8 = advance_fp8,
                             HEARTH_KERNELS(HEARTH_REFERENCE_KERNEL)};
#undef HEARTH_REFERENCE_KERNEL
  return table;
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace hearth::inline cpu
