// What llama.cpp makes of a GGUF file, for gguf.sh. Keys and values of its cache are kept in f32.
//   gguf_oracle greedy MODEL N    ids on stdin: the N likeliest tokens that follow
//   gguf_oracle nll MODEL T       ids on stdin: mean negative log-likelihood in windows of T
//   gguf_oracle tokenize MODEL    text on stdin: ids
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

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

int nll(llama_context* c, int vocab, const Ids& ids, int window) {
  double sum = 0;
  for (size_t at = 0; at + 1 < ids.size(); at += size_t(window)) {
    const int n = int(std::min(size_t(window), ids.size() - 1 - at));
    llama_memory_clear(llama_get_memory(c), true);
    llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; ++i) {
      b.token[i] = ids[at + size_t(i)], b.pos[i] = i, b.logits[i] = 1;
      b.n_seq_id[i] = 1, b.seq_id[i][0] = 0;
    }
    if (llama_decode(c, b)) return 1;
    for (int i = 0; i < n; ++i)
      sum += nll_of(llama_get_logits_ith(c, i), vocab, ids[at + size_t(i) + 1]);
    llama_batch_free(b);
  }
  std::printf("%.9f\n", sum / double(ids.size() - 1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string what = argv[1];
  const int number = argc > 3 ? std::atoi(argv[3]) : 0;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (!model) return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  if (what == "tokenize") return tokenize(vocab);
  const Ids ids{std::istream_iterator<llama_token>(std::cin), {}};
  llama_context_params p = llama_context_default_params();
  p.n_ctx = uint32_t(what == "greedy" ? int(ids.size()) + number : number);
  p.n_batch = p.n_ubatch = p.n_ctx;
  p.n_threads = p.n_threads_batch = 1;
  p.type_k = p.type_v = GGML_TYPE_F32;
  p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* c = llama_init_from_model(model, p);
  if (!c) return 1;
  const int V = llama_vocab_n_tokens(vocab);
  return what == "greedy" ? greedy(c, V, ids, number) : nll(c, V, ids, number);
}
