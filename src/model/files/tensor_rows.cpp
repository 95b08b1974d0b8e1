#include "model/files/tensor_rows.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline model {
namespace {

// Converts weights for a file, which must not have infinite values where the model has none.
void narrow(std::byte* out, DType d, std::span<const float> in) {
  if (convert_from_floats(out, d, in)) return;
  const auto is_lost = [&](const float& x) { return !convert_from_floats(out, d, {&x, 1}); };
  fail("weights", "expected values within the range of the requested dtype, got {}",
       *std::ranges::find_if(in, is_lost));
}

// Transposes (rows, cols) to (cols, rows) in cache-sized tiles.
std::vector<float> transpose(std::span<const float> in, int64_t rows, int64_t cols) {
  constexpr int64_t tile = 32;
  std::vector<float> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += tile)
    for (int64_t c0 = 0; c0 < cols; c0 += tile)
      for (int64_t r = r0; r < std::min(rows, r0 + tile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + tile); ++c)
          out[size_t(c * rows + r)] = in[size_t(r * cols + c)];
  return out;
}

// The position of row i of a half-split head if pairs are interleaved: i and i + D/2 are
// neighbours.
int64_t interleaved_row(int64_t i, int64_t head_dim) {
  const int64_t half = head_dim / 2, d = i % head_dim;
  return i - d + (d < half ? 2 * d : 2 * (d - half) + 1);
}

// Calls copy(row in the file, row here) for each row of a tensor whose heads are reordered.
template <class F>
void each_row(const FileTensor& t, int64_t rows, F copy) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t moved = interleaved_row(i, t.head_dim);
    t.interleaved ? copy(moved, i) : copy(i, moved);
  }
}

}  // namespace

std::vector<float> to_floats(const StoredTensor& t) {
  std::vector<float> out(size_t(t.numel()));
  convert_to_floats(out, t.dtype, t.bytes.data());
  return out;
}

std::vector<std::byte> from_floats(std::span<const float> in, DType d) {
  std::vector<std::byte> out(in.size() * size_t(size_of(d)));
  narrow(out.data(), d, in);
  return out;
}

void stream_elements(const ByteSink& sink, Backend& backend, const Tensor& t, int64_t first,
                     int64_t count, DType to) {
  constexpr int64_t piece = 1 << 20;  // elements
  const size_t most = size_t(std::min(count, piece));
  const int64_t size = size_of(t.dtype);
  std::vector<std::byte> raw(most * size_t(size));
  std::vector<float> floats(to == t.dtype ? 0 : most);
  std::vector<std::byte> converted(to == t.dtype ? 0 : most * size_t(size_of(to)));
  backend.enter_thread();  // this may be a thread that writes one shard
  for (int64_t i = 0; i < count; i += piece) {
    const size_t n = size_t(std::min(piece, count - i));
    backend.download(raw.data(), t.data + (first + i) * size, int64_t(n) * size);
    if (to == t.dtype) {
      sink(Bytes(raw).first(n * size_t(size)));
      continue;
    }
    const std::span<float> part = std::span(floats).first(n);
    convert_to_floats(part, t.dtype, raw.data());
    narrow(converted.data(), to, part);
    sink(Bytes(converted).first(n * size_t(size_of(to))));
  }
}

std::vector<float> to_rows(const FileTensor& t, std::vector<float> file) {
  if (t.transposed) return transpose(file, t.shape[0], t.shape[1]);
  if (!t.head_dim) return file;
  const int64_t rows = t.shape[0], cols = int64_t(file.size()) / rows;
  std::vector<float> out(file.size());
  each_row(t, rows, [&](int64_t there, int64_t here) {
    std::copy_n(file.begin() + there * cols, cols, out.begin() + here * cols);
  });
  return out;
}

std::vector<float> from_rows(const FileTensor& t, std::span<const float> param) {
  int64_t n = 1;
  for (const int64_t dim : t.shape) n *= dim;
  if (t.transposed) return transpose(param, t.shape[1], t.shape[0]);
  const int64_t rows = t.shape[0], cols = n / rows;
  param = param.subspan(size_t(t.row * cols), size_t(n));
  std::vector<float> out(param.begin(), param.end());
  if (t.head_dim)
    each_row(t, rows, [&](int64_t there, int64_t here) {
      std::copy_n(param.begin() + here * cols, cols, out.begin() + there * cols);
    });
  return out;
}

}  // namespace hearth::inline model
