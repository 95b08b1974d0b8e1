// Token and position embeddings. The gradient is divided by columns: each piece goes through all
// tokens in order, so repeated ids need no atomics and the bits are the same at any thread count.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {

void embed(Stream& s, const EmbedArgs& args) {
  expect_dtypes("embed", args.w.dtype, args.y, args.pos_w);
  const int64_t C = args.w.cols();
  by_dtype("embed", args.w, [&]<class T>(T*) {
    over_rows(s, count(args.ids), C, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = args.ids.as<int32_t>()[t];
        const T* token = args.w.as<const T>() + id * C;
        T* out = args.y.as<T>() + t * C;
        if (id < 0) {
          std::memset(static_cast<void*>(out), 0, size_t(C) * sizeof(T));
          continue;
        }
        if (!args.pos_w) {
          std::memcpy(static_cast<void*>(out), token, size_t(C) * sizeof(T));
          continue;
        }
        const int64_t at = larger(0, args.positions.as<int32_t>()[t]);
        const T* place = args.pos_w.as<const T>() + at * C;
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
  parallel(cpu_stream(s).threads, (C + width - 1) / width, [&](int64_t piece, int) {
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

void embed_bwd(Stream& s, const EmbedBwdArgs& args) {
  const EmbedSpec& spec = args.spec;
  expect_dtypes("embed_bwd", DType::f32, args.dw, args.dpos_w);
  if (args.dw && !spec.add) clear(s, args.dw);
  if (args.dpos_w && !spec.add_pos) clear(s, args.dpos_w);
  by_dtype("embed_bwd", args.dy, [&]<class T>(T*) {
    if (args.dw) scatter<T>(s, args.dw, args.dy, args.ids);
    if (args.dpos_w) scatter<T>(s, args.dpos_w, args.dy, args.positions);
  });
}

void scatter_rows(Stream& s, const ScatterRowsArgs& args) {
  expect_dtypes("scatter_rows", args.dx.dtype, args.dy, args.prior);
  const int64_t C = args.dx.cols();
  by_dtype("scatter_rows", args.dx, [&]<class T>(T*) {
    if (args.dx.data != args.prior.data)
      over_elements(s, count(args.dx), [&](int64_t begin, int64_t end) {
        void* to = static_cast<void*>(args.dx.as<T>() + begin);
        const size_t bytes = size_t(end - begin) * sizeof(T);
        if (args.prior)
          std::memcpy(to, args.prior.as<const T>() + begin, bytes);
        else
          std::memset(to, 0, bytes);
      });
    over_rows(s, count(args.ids), C, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = args.ids.as<int32_t>()[r];
        if (row < 0) continue;
        T* out = args.dx.as<T>() + row * C;
        const T* in = args.dy.as<const T>() + r * C;
        vectors(C, [&](int64_t i, auto v) { v.put(out + i, v.get(out + i) + v.get(in + i)); });
      }
    });
  });
}

}  // namespace hearth::HEARTH_ISA
