// Token and position embeddings. The gradient is cut by columns: each piece walks all tokens in
// order, so rows hit twice need no atomics and the bits are the same at any thread count.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {

void embed(Stream& s, Tensor y, Tensor ids, Tensor w, Tensor positions, Tensor pos_w) {
  expect_dtypes("embed", w.dtype, y, pos_w);
  const int64_t C = w.cols();
  by_dtype("embed", w, [&]<class T>(T*) {
    over_rows(s, count(ids), C, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = ids.as<int32_t>()[t];
        const T* token = w.as<const T>() + id * C;
        T* out = y.as<T>() + t * C;
        if (id < 0) {
          std::memset(static_cast<void*>(out), 0, size_t(C) * sizeof(T));
          continue;
        }
        if (!pos_w) {
          std::memcpy(static_cast<void*>(out), token, size_t(C) * sizeof(T));
          continue;
        }
        const int64_t at = larger(0, positions.as<int32_t>()[t]);
        const T* place = pos_w.as<const T>() + at * C;
        vectors(C, [&](int64_t i, auto v) { v.put(out + i, v.get(token + i) + v.get(place + i)); });
      }
    });
  });
}

namespace {

void clear(Stream& s, Tensor t) {
  over_elements(s, count(t), [&](int64_t begin, int64_t end) {
    std::memset(t.as<float>() + begin, 0, size_t(end - begin) * 4);
  });
}

// table[index[t]] += dy[t]
template <class T>
void scatter(Stream& s, Tensor table, Tensor dy, Tensor index) {
  const int64_t C = table.cols(), n = count(index), width = 64;
  parallel(cpu(s).threads, (C + width - 1) / width, [&](int64_t piece, int) {
    const int64_t begin = piece * width, size = smaller(width, C - begin);
    for (int64_t t = 0; t < n; ++t) {
      const int32_t row = index.as<int32_t>()[t];
      if (row < 0) continue;
      float* out = table.as<float>() + int64_t(row) * C + begin;
      const T* in = dy.as<const T>() + t * C + begin;
      vectors(size, [&](int64_t i, auto v) { v.put(out + i, v.get(out + i) + v.get(in + i)); });
    }
  });
}

}  // namespace

void embed_bwd(Stream& s, Tensor dw, Tensor dpos_w, Tensor dy, Tensor ids, Tensor positions,
               const EmbedSpec& spec) {
  expect_dtypes("embed_bwd", DType::f32, dw, dpos_w);
  if (dw && !spec.add) clear(s, dw);
  if (dpos_w && !spec.add_pos) clear(s, dpos_w);
  by_dtype("embed_bwd", dy, [&]<class T>(T*) {
    if (dw) scatter<T>(s, dw, dy, ids);
    if (dpos_w) scatter<T>(s, dpos_w, dy, positions);
  });
}

void scatter_rows(Stream& s, Tensor dx, Tensor dy, Tensor ids, Tensor prior) {
  expect_dtypes("scatter_rows", dx.dtype, dy, prior);
  const int64_t C = dx.cols();
  by_dtype("scatter_rows", dx, [&]<class T>(T*) {
    if (dx.data != prior.data)
      over_elements(s, count(dx), [&](int64_t begin, int64_t end) {
        void* to = static_cast<void*>(dx.as<T>() + begin);
        const size_t bytes = size_t(end - begin) * sizeof(T);
        if (prior)
          std::memcpy(to, prior.as<const T>() + begin, bytes);
        else
          std::memset(to, 0, bytes);
      });
    over_rows(s, count(ids), C, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = ids.as<int32_t>()[r];
        if (row < 0) continue;
        T* out = dx.as<T>() + row * C;
        const T* in = dy.as<const T>() + r * C;
        vectors(C, [&](int64_t i, auto v) { v.put(out + i, v.get(out + i) + v.get(in + i)); });
      }
    });
  });
}

}  // namespace hearth::HEARTH_ISA
