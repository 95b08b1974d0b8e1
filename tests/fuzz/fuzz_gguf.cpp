#include "formats/gguf/gguf.h"
#include "fuzz.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_tensors.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

int fuzz_gguf(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto file = std::as_bytes(std::span(data, size));
    const hearth::GgufTable table = hearth::parse_gguf(file, "fuzz");
    const auto inside = [&](hearth::Bytes b) {
      hearth::fuzz::require(b.empty() || (b.data() >= file.data() && &b.back() <= &file.back()));
    };
    hearth::fuzz::taken([&] {
      if (!hearth::has_vocabulary(table)) return;
      const hearth::Tokenizer t(hearth::make_vocabulary(hearth::read_gguf_vocabulary(table)));
      t.decode(t.encode("Once upon a time"));
    });
    hearth::fuzz::taken([&] {
      const hearth::ModelConfig config = hearth::read_gguf_config(table);
      hearth::check_expert_tensors(table, config);
      // As a model is opened: the list of tensors is made for as many layers as the file may have.
      if (config.layers > int64_t(table.tensors.size())) return;
      for (const auto& [name, t] : hearth::hub_tensors(table, config, hearth::gguf_type(table))) {
        inside(t.bytes);
        if (t.unpack) hearth::fuzz::require(int64_t(t.unpack(t.bytes).size()) == t.numel());
      }
    });
    for (const auto& [name, t] : table.tensors) inside(t.bytes), hearth::from_ggml(t.bytes, t.type);
    for (const auto& entry : table.values) {
      const std::string& key = entry.first;
      inside(entry.second.bytes);
      // The program asks by its own names, which errors quote as they are.
      if (key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._") != key.npos) continue;
      // Each may be of another kind: that is a refusal of its own.
      hearth::fuzz::taken([&] { table.whole(key); });
      hearth::fuzz::taken([&] { table.number(key); });
      hearth::fuzz::taken([&] { table.flag(key); });
      hearth::fuzz::taken([&] { table.text(key); });
      hearth::fuzz::taken([&] { table.texts(key); });
      hearth::fuzz::taken([&] { table.numbers(key); });
      hearth::fuzz::taken([&] { table.wholes(key); });
    }
  });
}

namespace {

// A model of one layer with two experts of width 1, as GGUF's llama.
std::string seed_with_experts() {
  using hearth::fuzz::bytes_of;
  hearth::GgufKeys keys;
  keys.set("general.architecture", "llama");
  for (const char* key : {"context_length", "block_count", "feed_forward_length",
                          "attention.head_count", "expert_used_count"})
    keys.set(std::string("llama.") + key, uint32_t(1));
  for (const char* key : {"embedding_length", "expert_count", "rope.dimension_count"})
    keys.set(std::string("llama.") + key, uint32_t(2));
  keys.set("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  const std::string all = keys.bytes();
  std::string tensors;
  uint64_t count = 0;
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    tensors += bytes_of(uint64_t(name.size())) + name + bytes_of(uint32_t(shape.size()));
    for (const uint64_t dim : shape) tensors += bytes_of(dim);
    tensors += bytes_of(uint32_t(0)) + bytes_of(32 * count++);
  };
  for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
    add(std::string(name) + ".weight", {2});
  for (const char* name : {"token_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v",
                           "blk.0.attn_output", "blk.0.ffn_gate_inp"})
    add(std::string(name) + ".weight", {2, 2});
  add("blk.0.ffn_gate_exps.weight", {2, 1, 2});
  add("blk.0.ffn_up_exps.weight", {2, 1, 2});
  add("blk.0.ffn_down_exps.weight", {1, 2, 2});
  std::string file =
      "GGUF" + bytes_of(uint32_t(3)) + bytes_of(count) + bytes_of(keys.count()) + all + tensors;
  file.resize((file.size() + 31) / 32 * 32);
  return file + std::string(32 * count, 'x');
}

}  // namespace

hearth::fuzz::Seeds seeds_gguf() {
  using hearth::fuzz::bytes_of;
  const auto text = [](std::string_view s) {
    return bytes_of(uint64_t(s.size())) + std::string(s);
  };
  const auto head = [](uint64_t tensors, uint64_t keys) {
    return "GGUF" + bytes_of(uint32_t(3)) + bytes_of(tensors) + bytes_of(keys);
  };
  const std::string keys = text("general.architecture") + bytes_of(uint32_t(8)) + text("llama") +
                           text("n") + bytes_of(uint32_t(4)) + bytes_of(uint32_t(7)) +
                           text("list") + bytes_of(uint32_t(9)) + bytes_of(uint32_t(8)) +
                           bytes_of(uint64_t(2)) + text("a") + text("b") + text("f") +
                           bytes_of(uint32_t(6)) + bytes_of(1.5f) + text("on") +
                           bytes_of(uint32_t(7)) + std::string(1, '\1');
  const std::string tensor = text("t") + bytes_of(uint32_t(2)) + bytes_of(uint64_t(2)) +
                             bytes_of(uint64_t(3)) + bytes_of(uint32_t(0)) + bytes_of(uint64_t(0));
  // Two tokens and a merge of them, by the name of the list.
  const auto list = [&](std::string_view key, uint32_t kind, uint64_t count, std::string items) {
    return text(key) + bytes_of(uint32_t(9)) + bytes_of(kind) + bytes_of(count) + items;
  };
  const std::string vocabulary =
      text("tokenizer.ggml.model") + bytes_of(uint32_t(8)) + text("gpt2") +
      text("tokenizer.ggml.pre") + bytes_of(uint32_t(8)) + text("gpt-2") +
      list("tokenizer.ggml.tokens", 8, 3, text("a") + text("b") + text("ab")) +
      list("tokenizer.ggml.token_type", 5, 3,
           bytes_of(int32_t(1)) + bytes_of(int32_t(1)) + bytes_of(int32_t(1))) +
      list("tokenizer.ggml.merges", 8, 1, text("a b")) + text("tokenizer.ggml.bos_token_id") +
      bytes_of(uint32_t(4)) + bytes_of(uint32_t(2));
  std::string whole = head(1, 5) + keys + tensor;
  whole.resize((whole.size() + 31) / 32 * 32);
  return {head(0, 5) + keys, head(0, 6) + vocabulary, whole + std::string(24, 'x'),
          seed_with_experts()};
}
