// What llama.cpp makes of a GGUF file, for gguf.sh. Keys and values of its cache are kept in f32.
//   gguf_oracle greedy MODEL N    ids on stdin: the N likeliest tokens that follow
//   gguf_oracle nll MODEL T       ids on stdin: mean negative log-likelihood in windows of T
//   gguf_oracle logits MODEL OUT  ids on stdin: their logits as f32, in the file OUT
//   gguf_oracle tokenize MODEL    text on stdin: ids
//   gguf_oracle quantise IN TYPE OUT  the matrices of a file whose rows are whole blocks, in a type
//   gguf_oracle plain IN OUT      the tensors of a file in F32
#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

// Not in the table of types, because no model is stored in Q8_K.
extern "C" void quantize_row_q8_K_ref(const float*, void*, int64_t);
extern "C" void dequantize_row_q8_K(const void*, float*, int64_t);

namespace {

using Ids = std::vector<llama_token>;

int tokenize(const llama_vocab* vocab) {
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  Ids ids(text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), int(text.size()), ids.data(), int(ids.size()),
                               true, false);
  for (int i = 0; i < n; ++i) std::printf("%d ", ids[size_t(i)]);
  return n < 0;
}

int greedy(llama_context* c, int vocab, Ids ids, int tokens) {
  for (int i = 0; i < tokens; ++i) {
    if (llama_decode(c, llama_batch_get_one(ids.data(), int(ids.size())))) return 1;
    const float* logits = llama_get_logits_ith(c, -1);
    ids = {llama_token(std::max_element(logits, logits + vocab) - logits)};
    std::printf("%d ", ids[0]);
  }
  return 0;
}

double nll_of(const float* logits, int vocab, llama_token target) {
  const double most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int v = 0; v < vocab; ++v) sum += std::exp(double(logits[v]) - most);
  return most + std::log(sum) - double(logits[target]);
}

// Computes logits of all ids at once; false at a failure.
bool decode(llama_context* c, const llama_token* ids, int n) {
  llama_memory_clear(llama_get_memory(c), true);
  llama_batch b = llama_batch_init(n, 0, 1);
  b.n_tokens = n;
  for (int i = 0; i < n; ++i) {
    b.token[i] = ids[i], b.pos[i] = i, b.logits[i] = 1;
    b.n_seq_id[i] = 1, b.seq_id[i][0] = 0;
  }
  const bool ok = llama_decode(c, b) == 0;
  llama_batch_free(b);
  return ok;
}

int nll(llama_context* c, int vocab, const Ids& ids, int window) {
  double sum = 0;
  for (size_t at = 0; at + 1 < ids.size(); at += size_t(window)) {
    const int n = int(std::min(size_t(window), ids.size() - 1 - at));
    if (!decode(c, ids.data() + at, n)) return 1;
    for (int i = 0; i < n; ++i)
      sum += nll_of(llama_get_logits_ith(c, i), vocab, ids[at + size_t(i) + 1]);
  }
  std::printf("%.9f\n", sum / double(ids.size() - 1));
  return 0;
}

int logits(llama_context* c, int vocab, const Ids& ids, const char* path) {
  if (!decode(c, ids.data(), int(ids.size()))) return 1;
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < int(ids.size()); ++i)
    out.write(reinterpret_cast<const char*>(llama_get_logits_ith(c, i)),
              std::streamsize(sizeof(float)) * vocab);
  return !out.flush();
}

std::vector<float> floats_of(const ggml_tensor* t) {
  std::vector<float> x(size_t(ggml_nelements(t)));
  if (t->type == GGML_TYPE_F32)
    std::memcpy(x.data(), t->data, x.size() * sizeof(float));
  else if (t->type == GGML_TYPE_Q8_K)
    dequantize_row_q8_K(t->data, x.data(), ggml_nelements(t));
  else
    ggml_get_type_traits(t->type)->to_float(t->data, x.data(), ggml_nelements(t));
  return x;
}

std::vector<char> quantised(const std::vector<float>& x, ggml_type type, int64_t row) {
  const int64_t rows = int64_t(x.size()) / row;
  std::vector<char> out(size_t(rows) * ggml_row_size(type, row));
  if (type == GGML_TYPE_Q8_K)
    quantize_row_q8_K_ref(x.data(), out.data(), int64_t(x.size()));
  else
    ggml_quantize_chunk(type, x.data(), out.data(), 0, rows, row, nullptr);
  return out;
}

// Writes IN with other types of tensors: F32, or `type` where rows are whole blocks of it.
int retyped(const char* in, ggml_type type, const char* out) {
  ggml_context* tensors = nullptr;
  gguf_context *from = gguf_init_from_file(in, {false, &tensors}), *file = gguf_init_empty();
  if (!from) return 1;
  gguf_set_kv(file, from);
  std::vector<std::vector<char>> kept;
  for (int64_t i = 0; i < gguf_get_n_tensors(from); ++i) {
    const char* name = gguf_get_tensor_name(from, i);
    const ggml_tensor* t = ggml_get_tensor(tensors, name);
    // Learned positions and routers are F32 in every file.
    const bool fits = ggml_n_dims(t) > 1 && t->ne[0] % ggml_blck_size(type) == 0 &&
                      !std::strstr(name, "position_embd") && !std::strstr(name, "ffn_gate_inp");
    const ggml_type to = fits ? type : GGML_TYPE_F32;
    const std::vector<float> x = floats_of(t);
    const char* bytes = reinterpret_cast<const char*>(x.data());
    kept.push_back(to == GGML_TYPE_F32 ? std::vector(bytes, bytes + x.size() * sizeof(float))
                                       : quantised(x, to, t->ne[0]));
    gguf_add_tensor(file, t);
    gguf_set_tensor_type(file, name, to);
    gguf_set_tensor_data(file, name, kept.back().data());
  }
  return !gguf_write_to_file(file, out, false);
}

ggml_type type_named(const std::string& name) {  // "q4_K"
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const char* own = ggml_type_name(ggml_type(i));
    if (own && own == name) return ggml_type(i);
  }
  return GGML_TYPE_COUNT;
}

int retype(const std::string& what, int argc, char** argv) {
  if (what == "plain") return argc < 4 ? 2 : retyped(argv[2], GGML_TYPE_F32, argv[3]);
  const ggml_type type = argc < 5 ? GGML_TYPE_COUNT : type_named(argv[3]);
  return type == GGML_TYPE_COUNT ? 2 : retyped(argv[2], type, argv[4]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string what = argv[1];
  const int number = argc > 3 && what != "logits" ? std::atoi(argv[3]) : 0;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  if (what == "quantise" || what == "plain") return retype(what, argc, argv);
  llama_model* model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (!model) return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  if (what == "tokenize") return tokenize(vocab);
  const Ids ids{std::istream_iterator<llama_token>(std::cin), {}};
  llama_context_params p = llama_context_default_params();
  p.n_ctx = uint32_t(what == "nll" ? number : int(ids.size()) + number);
  p.n_batch = p.n_ubatch = p.n_ctx;
  p.n_threads = p.n_threads_batch = 1;
  p.type_k = p.type_v = GGML_TYPE_F32;
  p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* c = llama_init_from_model(model, p);
  if (!c) return 1;
  const int V = llama_vocab_n_tokens(vocab);
  if (what == "logits") return argc < 4 ? 2 : logits(c, V, ids, argv[3]);
  return what == "greedy" ? greedy(c, V, ids, number) : nll(c, V, ids, number);
}
