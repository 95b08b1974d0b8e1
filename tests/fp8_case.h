// Shared by the tests of fp8 training on the CPU and on a GPU: calls of the two kernels on tensors
// of the host, and models whose widths suit fp8.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/fp8.h"
#include "model_cases.h"

namespace hearth::cases {

// A tensor of a backend with the contents of a vector.
template <class T>
class OnDevice {
 public:
  OnDevice(Backend& b, const std::vector<T>& v, Shape s, DType d)
      : backend_(b),
        memory_(b, std::max<int64_t>(1, int64_t(v.size() * sizeof(T))), "a test"),
        tensor_{memory_.data(), s, d} {
    b.upload(memory_.data(), v.data(), int64_t(v.size() * sizeof(T)));
  }
  operator Tensor() const { return tensor_; }
  std::vector<T> read() const {
    std::vector<T> v(size_t(tensor_.bytes()) / sizeof(T));
    backend_.download(v.data(), tensor_.data, tensor_.bytes());
    return v;
  }

 private:
  Backend& backend_;
  Buffer memory_;
  Tensor tensor_;
};

inline std::vector<bf16> random_bf16(int64_t n, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<bf16> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(bf16(normal(random)));
  return v;
}

struct RoundCase {
  int64_t R = 1, C = 16;
  DType format = DType::e4m3;
  QuantiseFp8Spec spec = {};
  bool delayed = false;  // the scale comes from `previous`
  float previous = 0;
};

// Columns of x for C columns of the result.
inline int64_t round_width(const RoundCase& c) {
  return !is_glu(c.spec.act) ? c.C : c.spec.act_slope ? c.C / 2 : 2 * c.C;
}

struct RoundResult {
  std::vector<uint8_t> y, yt;
  std::vector<float> sums;
  Fp8Site site;
};

inline RoundResult round_on(Backend& b, const RoundCase& c, const std::vector<bf16>& x,
                            const std::vector<bf16>& aux = {}) {
  const Shape shape{c.R, c.C}, turned{c.C, round_up(c.R, 16)};
  const Shape sum_shape{ceil_div(c.R, fp8_sum_rows), c.C};
  Scalars scalars;
  scalars.step = fp8_measured_steps;
  Fp8Site site;
  site.previous = c.previous;
  const OnDevice<uint8_t> y(b, std::vector<uint8_t>(size_t(shape.numel()), 0x55), shape, c.format);
  const OnDevice<uint8_t> yt(b, std::vector<uint8_t>(size_t(turned.numel()), 0x55), turned,
                             c.format);
  const OnDevice<float> sums(b, std::vector<float>(size_t(sum_shape.numel()), 1e9f), sum_shape,
                             DType::f32);
  const OnDevice<Fp8Site> sites(b, {site}, {1, int64_t(sizeof site)}, DType::u8);
  const OnDevice<Scalars> values(b, {scalars}, {int64_t(sizeof scalars)}, DType::u8);
  const OnDevice<bf16> in(b, x, {c.R, round_width(c)}, DType::bf16);
  const OnDevice<bf16> in_aux(b, aux.empty() ? random_bf16(shape.numel(), 1) : aux, shape,
                              DType::bf16);
  b.kernels().quantise_fp8(b.stream(), {.to = {.y = y,
                                               .yt = yt,
                                               .sums = sums,
                                               .site = sites,
                                               .scalars = c.delayed ? Tensor(values) : Tensor{}},
                                        .x = in,
                                        .aux = aux.empty() ? Tensor{} : Tensor(in_aux),
                                        .spec = c.spec});
  b.synchronize();
  return {y.read(), yt.read(), sums.read(), sites.read()[0]};
}

struct Fp8Matrix {
  std::vector<uint8_t> codes;
  DType format = DType::e4m3;
  float scale = 1;
};

// c = alpha * (a bT + bias) + prior with c (M, N), a (M, K), b (N, K).
struct Fp8ProductCase {
  int64_t M = 16, N = 16, K = 16;
  DType c = DType::bf16;
  float alpha = 1;
  bool bias = false, prior = false, in_place = false, fast_sums = false;
};

inline std::vector<float> product_on(Backend& b, const Fp8ProductCase& p, const Fp8Matrix& a,
                                     const Fp8Matrix& w, const std::vector<float>& bias,
                                     const std::vector<float>& prior) {
  const auto site = [&](float scale) {
    Fp8Site s;
    s.scale = scale;
    return OnDevice<Fp8Site>(b, {s}, {1, int64_t(sizeof s)}, DType::u8);
  };
  const auto bytes_of = [](DType d, const std::vector<float>& v) {
    std::vector<std::byte> bytes(v.size() * size_t(size_of(d)));
    convert_from_floats(bytes.data(), d, v);
    return bytes;
  };
  const Shape shape{p.M, p.N};
  const OnDevice<std::byte> c(b, bytes_of(p.c, prior), shape, p.c);
  const OnDevice<std::byte> before(b, bytes_of(p.c, prior), shape, p.c);
  const OnDevice<std::byte> biases(b, bytes_of(DType::bf16, bias), {p.N}, DType::bf16);
  const OnDevice<uint8_t> codes_a(b, a.codes, {p.M, p.K}, a.format);
  const OnDevice<uint8_t> codes_w(b, w.codes, {p.N, p.K}, w.format);
  const OnDevice<Fp8Site> a_site = site(a.scale), w_site = site(w.scale);
  b.kernels().gemm(b.stream(), {.c = c,
                                .a = codes_a,
                                .b = codes_w,
                                .bias = p.bias ? Tensor(biases) : Tensor{},
                                .prior = !p.prior ? Tensor{} : Tensor(p.in_place ? c : before),
                                .a_scale = a_site,
                                .b_scale = w_site,
                                .spec = {.tb = true, .alpha = p.alpha, .fast_sums = p.fast_sums}});
  b.synchronize();
  const std::vector<std::byte> bytes = c.read();
  std::vector<float> out(size_t(shape.numel()));
  convert_to_floats(out, p.c, bytes.data());
  return out;
}

inline float fp8_value(DType d, uint8_t code) {
  if (d == DType::e4m3) {
    e4m3 c;
    c.bits = code;
    return float(c);
  }
  e5m2 c;
  c.bits = code;
  return float(c);
}

// The same product in double precision, and the sum of the magnitudes of its terms.
struct ExactProduct {
  Numbers c, size;
};
inline ExactProduct exact_product(const Fp8ProductCase& p, const Fp8Matrix& a, const Fp8Matrix& w,
                                  const std::vector<float>& bias, const std::vector<float>& prior) {
  ExactProduct r;
  for (int64_t i = 0; i < p.M; ++i)
    for (int64_t j = 0; j < p.N; ++j) {
      double sum = p.bias ? double(float(bf16(bias[size_t(j)]))) : 0, size = std::abs(sum);
      for (int64_t k = 0; k < p.K; ++k) {
        const double term = double(fp8_value(a.format, a.codes[size_t(i * p.K + k)])) * a.scale *
                            double(fp8_value(w.format, w.codes[size_t(j * p.K + k)])) * w.scale;
        sum += term, size += std::abs(term);
      }
      const double before = p.prior ? double(prior[size_t(i * p.N + j)]) : 0;
      r.c.push_back(p.alpha * sum + before);
      r.size.push_back(std::abs(p.alpha) * size + std::abs(before));
    }
  return r;
}

inline Fp8Matrix random_fp8(int64_t n, uint32_t seed, DType format, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, format == DType::e4m3 ? 30.0f : 300.0f);
  Fp8Matrix m{.codes = {}, .format = format, .scale = scale};
  for (int64_t i = 0; i < n; ++i)
    m.codes.push_back(format == DType::e4m3 ? e4m3(normal(random)).bits
                                            : e5m2(normal(random)).bits);
  return m;
}

// Models of model_cases() with widths that are multiples of 16.
inline std::vector<ModelCase> fp8_models() {
  std::vector<ModelCase> all;
  for (ModelCase m : model_cases()) {
    if (m.name != "llama" && m.name != "gpt2" && m.name != "nocap" && m.name != "nanochat" &&
        m.name != "key_offset")
      continue;
    m.config.dim = 32, m.config.hidden = 48, m.config.init_std = 0.1f;
    all.push_back(m);
  }
  return all;
}

}  // namespace hearth::cases
