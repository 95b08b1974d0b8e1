// The models of Hugging Face's families by their published formulas, in double, one token after
// another: the oracle for what hearth computes from the same folder. It shares no code with it. A
// tensor is made, at random, when the formulas first ask for it by its name.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/params.h"
#include "formats/safetensors.h"

namespace hearth::test {

using Vec = std::vector<double>;

class FamilyReference {
 public:
  explicit FamilyReference(nlohmann::json config) : j(std::move(config)), type_(j["model_type"]) {}

  // Tokens of the sequence by which longrope chooses its factors; 0: max_position_embeddings.
  int64_t length = 0;

  // Logits after each token.
  std::vector<Vec> logits(const std::vector<int32_t>& tokens) {
    std::vector<Vec> out;
    for (const Vec& v : states(tokens)) {
      Vec y = matmul(head_name(), int64_t(j["vocab_size"]), v);
      const nlohmann::json cap = j.value("final_logit_softcapping", nlohmann::json());
      if (!cap.is_null())
        for (double& a : y) a = double(cap) * std::tanh(a / double(cap));
      out.push_back(std::move(y));
    }
    return out;
  }

  // deepseek_v3: the logits of each layer of num_nextn_predict_layers, which read the states of the
  // one before and one token further. They have tables of their own, equal to the model's.
  std::vector<std::vector<Vec>> further_logits(const std::vector<int32_t>& tokens) {
    std::vector<std::vector<Vec>> out;
    std::vector<Vec> x = states(tokens);
    const int64_t layers = j["num_hidden_layers"], modules = j["num_nextn_predict_layers"];
    for (int64_t k = 0; k < modules; ++k) {
      const std::string at = "model.layers." + std::to_string(layers + k) + ".";
      const std::string embed = at + "embed_tokens.weight", head = at + "shared_head.head.weight";
      made_[embed] = made_.at(embed_name());
      made_[head] = tensor(head_name(), {j["vocab_size"], dim()});
      x.pop_back();
      for (size_t i = 0; i < x.size(); ++i) {
        Vec both = norm(row(embed, tokens[i + size_t(k) + 1]), at + "enorm");
        const Vec before = norm(x[i], at + "hnorm");
        both.insert(both.end(), before.begin(), before.end());
        x[i] = matmul(at + "eh_proj.weight", dim(), both);
      }
      block(x, layers + k);
      out.emplace_back();
      for (const Vec& v : x)
        out.back().push_back(matmul(head, j["vocab_size"], norm(v, at + "shared_head.norm")));
    }
    return out;
  }

  std::vector<TensorToWrite> tensors() const {
    std::vector<TensorToWrite> out;
    for (const auto& [name, t] : made_)
      out.push_back({name, DType::f32, t.shape, [&values = t.values](const ByteSink& sink) {
                       sink(std::as_bytes(std::span(values)));
                     }});
    return out;
  }

 private:
  struct Made {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  const Made& tensor(const std::string& name, std::vector<int64_t> shape) {
    const auto [it, fresh] = made_.try_emplace(name);
    if (!fresh) return it->second;
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    it->second = {shape, std::vector<float>(size_t(n))};
    draw(it->second.values, Init::normal(shape.size() == 1 ? 0.2f : 0.25f), 31, name);
    // Gains and biases in steps of 2^-10, so that 1 + w is exact; and never -0, which 1 + w loses.
    if (shape.size() == 1)
      for (float& x : it->second.values) x = std::round(x * 1024) / 1024 + 0.0f;
    return it->second;
  }

  // After the final norm.
  std::vector<Vec> states(const std::vector<int32_t>& tokens) {
    std::vector<Vec> x;
    for (const int32_t id : tokens) x.push_back(row(embed_name(), id));
    if (gemma())
      for (Vec& v : x)
        for (double& a : v) a *= float(std::sqrt(double(dim())));
    for (int64_t i = 0; i < int64_t(j["num_hidden_layers"]); ++i) block(x, i);
    for (Vec& v : x) v = norm(v, final_name());
    return x;
  }

  // --- the config ---
  int64_t dim() const { return j["hidden_size"]; }
  int64_t heads() const { return j["num_attention_heads"]; }
  int64_t kv_heads() const { return j.value("num_key_value_heads", heads()); }
  int64_t head_dim() const { return j.value("head_dim", dim() / heads()); }
  bool gemma() const { return type_.starts_with("gemma"); }
  bool latent() const { return type_ == "deepseek_v3"; }
  bool neox() const { return type_ == "gpt_neox"; }
  bool sandwich() const { return type_ == "gemma2" || type_ == "gemma3_text"; }
  bool has_biases() const { return j.value("attention_bias", neox()); }
  std::string embed_name() const {
    return neox() ? "gpt_neox.embed_in.weight" : "model.embed_tokens.weight";
  }
  std::string head_name() const {
    if (j.value("tie_word_embeddings", false)) return embed_name();
    return neox() ? "embed_out.weight" : "lm_head.weight";
  }
  std::string final_name() const { return neox() ? "gpt_neox.final_layer_norm" : "model.norm"; }
  bool slides(int64_t layer) const {
    if (j.contains("layer_types")) return j["layer_types"][size_t(layer)] == "sliding_attention";
    return j.contains("sliding_window") && !j["sliding_window"].is_null();
  }
  double theta(int64_t layer) const {
    if (type_ == "gemma3_text" && slides(layer)) return j["rope_local_base_freq"];
    return j[neox() ? "rotary_emb_base" : "rope_theta"];
  }
  bool turns(int64_t layer) const {
    return !j.contains("no_rope_layers") || j["no_rope_layers"][size_t(layer)] == 1;
  }
  int64_t rotary() const {
    const char* key = neox() ? "rotary_pct" : "partial_rotary_factor";
    return int64_t(double(head_dim()) * j.value(key, 1.0));
  }

  // --- parts ---
  Vec row(const std::string& name, int64_t i) {
    const Made& t = tensor(name, {j["vocab_size"], dim()});
    return {t.values.begin() + i * dim(), t.values.begin() + (i + 1) * dim()};
  }
  Vec matmul(const std::string& name, int64_t out, const Vec& x) {
    const int64_t in = int64_t(x.size());
    const Made& w = tensor(name, {out, in});
    Vec y(size_t(out), 0);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i)
        y[size_t(o)] += double(w.values[size_t(o * in + i)]) * x[size_t(i)];
    return y;
  }
  Vec linear(const std::string& name, int64_t out, const Vec& x, bool bias) {
    Vec y = matmul(name + ".weight", out, x);
    if (!bias) return y;
    const Made& b = tensor(name + ".bias", {out});
    for (int64_t i = 0; i < out; ++i) y[size_t(i)] += b.values[size_t(i)];
    return y;
  }
  Vec norm(const Vec& x, const std::string& name) {
    return norm(x, name, j[neox() ? "layer_norm_eps" : "rms_norm_eps"]);
  }
  Vec norm(Vec x, const std::string& name, double eps) {
    const int64_t n = int64_t(x.size());
    double mean = 0, square = 0;
    for (const double a : x) mean += a / double(n);
    if (!neox()) mean = 0;
    for (const double a : x) square += (a - mean) * (a - mean) / double(n);
    const Made gain = tensor(name + ".weight", {n});
    for (int64_t i = 0; i < n; ++i) {
      double& a = x[size_t(i)];
      a = (a - mean) / std::sqrt(square + eps) *
          (double(gain.values[size_t(i)]) + (gemma() ? 1 : 0));
      if (neox()) a += double(tensor(name + ".bias", {n}).values[size_t(i)]);
    }
    return x;
  }
  // Turns n dims: 2 i with 2 i + 1.
  static void turn_neighbours(double* x, int64_t n, int64_t position, double base) {
    for (int64_t i = 0; i < n; i += 2) {
      const double angle = double(position) * std::pow(base, -double(i) / double(n));
      const double a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  // longrope: the divisors of the frequencies, and the factor on cosines and sines.
  struct LongRope {
    std::vector<double> divisors;
    double factor = 1;
  };
  LongRope long_rope(int64_t pairs) const {
    const nlohmann::json scaling = j.value("rope_scaling", nlohmann::json());
    LongRope r{.divisors = std::vector<double>(size_t(pairs), 1)};
    if (scaling.is_null() || scaling.value("type", "") != "longrope") return r;
    const double original = j["original_max_position_embeddings"];
    const double most = j["max_position_embeddings"], now = length ? double(length) : most;
    const nlohmann::json& list = scaling[now > original ? "long_factor" : "short_factor"];
    r.divisors = list.get<std::vector<double>>();
    if (scaling.contains("attention_factor"))
      r.factor = scaling["attention_factor"];
    else if (most > original)
      r.factor = std::sqrt(1 + std::log(most / original) / std::log(original));
    return r;
  }
  // Turns the first dims of a head: i with i + n / 2.
  void turn(double* head, int64_t position, double base) {
    const int64_t n = rotary();
    const LongRope r = long_rope(n / 2);
    for (int64_t i = 0; i < n / 2; ++i) {
      const double angle = double(position) * std::pow(base, -2.0 * double(i) / double(n)) /
                           r.divisors.at(size_t(i));
      const double a = r.factor * head[i], b = r.factor * head[i + n / 2];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + n / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  static double act(const std::string& name, double x) {
    if (name == "silu") return x / (1 + std::exp(-x));
    if (name == "gelu") return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }

  struct Heads {
    Vec q, k, v;
  };
  Heads project(const Vec& x, const std::string& at) {
    const int64_t D = head_dim(), H = heads(), G = kv_heads();
    if (neox()) {
      const Vec all = linear(at + "query_key_value", 3 * H * D, x, has_biases());
      Heads r;
      for (int64_t h = 0; h < H; ++h)
        for (int64_t part = 0; part < 3; ++part) {
          const auto from = all.begin() + (3 * h + part) * D;
          Vec& to = part == 0 ? r.q : part == 1 ? r.k : r.v;
          to.insert(to.end(), from, from + D);
        }
      return r;
    }
    if (type_ == "phi3") {
      const Vec all = linear(at + "qkv_proj", (H + 2 * G) * D, x, false);
      const auto k = all.begin() + H * D, v = k + G * D;
      return {{all.begin(), k}, {k, v}, {v, all.end()}};
    }
    const bool bias = has_biases() || type_ == "qwen2";
    Heads r{linear(at + "q_proj", H * D, x, bias), linear(at + "k_proj", G * D, x, bias),
            linear(at + "v_proj", G * D, x, bias)};
    if (type_ == "olmo2") r.q = norm(r.q, at + "q_norm"), r.k = norm(r.k, at + "k_norm");
    if (type_.starts_with("qwen3") || type_ == "gemma3_text") {
      r.q = norm_heads(r.q, at + "q_norm");
      r.k = norm_heads(r.k, at + "k_norm");
    }
    return r;
  }
  // deepseek_v3: q, turned already, and k and v from the latent; all heads share a part of k.
  Heads project_latent(const Vec& x, const std::string& at, int64_t position) {
    const int64_t H = heads(), L = j["kv_lora_rank"], N = j["qk_nope_head_dim"];
    const int64_t R = j["qk_rope_head_dim"], V = j["v_head_dim"];
    Heads r;
    if (j["q_lora_rank"].is_null()) {
      r.q = linear(at + "q_proj", H * (N + R), x, false);
    } else {
      const Vec latent = linear(at + "q_a_proj", j["q_lora_rank"], x, has_biases());
      r.q = linear(at + "q_b_proj", H * (N + R), norm(latent, at + "q_a_layernorm", 1e-6), false);
    }
    const Vec both = linear(at + "kv_a_proj_with_mqa", L + R, x, has_biases());
    Vec key(both.begin() + L, both.end());
    const Vec latent = norm(Vec(both.begin(), both.begin() + L), at + "kv_a_layernorm", 1e-6);
    const Vec kv = linear(at + "kv_b_proj", H * (N + V), latent, false);
    turn_neighbours(key.data(), R, position, theta(0));
    for (int64_t h = 0; h < H; ++h) {
      turn_neighbours(&r.q[size_t(h * (N + R) + N)], R, position, theta(0));
      const auto own = kv.begin() + h * (N + V);
      r.k.insert(r.k.end(), own, own + N);
      r.k.insert(r.k.end(), key.begin(), key.end());
      r.v.insert(r.v.end(), own + N, own + N + V);
    }
    return r;
  }
  Vec norm_heads(const Vec& x, const std::string& name) {
    Vec y;
    for (auto it = x.begin(); it != x.end(); it += head_dim()) {
      const Vec head = norm({it, it + head_dim()}, name);
      y.insert(y.end(), head.begin(), head.end());
    }
    return y;
  }

  std::vector<Vec> attention(const std::vector<Vec>& x, const std::string& at, int64_t layer) {
    const int64_t H = heads(), G = kv_heads(), T = int64_t(x.size());
    const int64_t D =
        latent() ? int64_t(j["qk_nope_head_dim"]) + int64_t(j["qk_rope_head_dim"]) : head_dim();
    const int64_t V = latent() ? int64_t(j["v_head_dim"]) : D;
    std::vector<Heads> all;
    for (int64_t t = 0; t < T; ++t) {
      if (latent()) {
        all.push_back(project_latent(x[size_t(t)], at, t));
        continue;
      }
      all.push_back(project(x[size_t(t)], at));
      if (!turns(layer)) continue;
      for (int64_t h = 0; h < H; ++h) turn(&all.back().q[size_t(h * D)], t, theta(layer));
      for (int64_t h = 0; h < G; ++h) turn(&all.back().k[size_t(h * D)], t, theta(layer));
    }
    const double scale = 1 / std::sqrt(double(j.value("query_pre_attn_scalar", D)));
    const int64_t window = slides(layer) ? int64_t(j["sliding_window"]) : T;
    const nlohmann::json cap = j.value("attn_logit_softcapping", nlohmann::json());
    std::vector<Vec> out;
    for (int64_t t = 0; t < T; ++t) {
      Vec y(size_t(H * V), 0);
      for (int64_t h = 0; h < H; ++h) {
        const int64_t g = h / (H / G);
        Vec weights;
        double sum = 0;
        const int64_t first = std::max<int64_t>(0, t - window + 1);
        for (int64_t s = first; s <= t; ++s) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d)
            score += all[size_t(t)].q[size_t(h * D + d)] * all[size_t(s)].k[size_t(g * D + d)];
          score *= scale;
          if (!cap.is_null()) score = double(cap) * std::tanh(score / double(cap));
          weights.push_back(std::exp(score));
          sum += weights.back();
        }
        for (int64_t s = first; s <= t; ++s)
          for (int64_t d = 0; d < V; ++d)
            y[size_t(h * V + d)] +=
                weights[size_t(s - first)] / sum * all[size_t(s)].v[size_t(g * V + d)];
      }
      const bool bias = has_biases();
      out.push_back(linear(at + (neox() ? "dense" : "o_proj"), dim(), y, bias));
    }
    return out;
  }

  Vec mlp(const Vec& x, const std::string& at) { return mlp(x, at, j["intermediate_size"]); }
  Vec mlp(const Vec& x, const std::string& at, int64_t hidden) {
    const std::string name =
        j.contains("hidden_activation") ? j["hidden_activation"] : j["hidden_act"];
    if (neox()) {
      Vec h = linear(at + "dense_h_to_4h", hidden, x, true);
      for (double& a : h) a = act(name, a);
      return linear(at + "dense_4h_to_h", dim(), h, true);
    }
    Vec gate, up;
    if (type_ == "phi3") {
      const Vec both = linear(at + "gate_up_proj", 2 * hidden, x, false);
      gate = {both.begin(), both.begin() + hidden}, up = {both.begin() + hidden, both.end()};
    } else {
      gate = linear(at + "gate_proj", hidden, x, false);
      up = linear(at + "up_proj", hidden, x, false);
    }
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = act(name, gate[i]) * up[i];
    return linear(at + "down_proj", dim(), gate, false);
  }

  bool has_experts(int64_t layer) const {
    if (type_ == "mixtral") return true;
    if (latent()) return layer >= int64_t(j["first_k_dense_replace"]);
    if (type_ != "qwen3_moe") return false;
    for (const nlohmann::json& dense : j.value("mlp_only_layers", nlohmann::json::array()))
      if (dense == layer) return false;
    return true;
  }
  // deepseek_v3: sigmoid scores; experts are chosen by score plus bias in the groups whose two best
  // add up to most, and weighed by their scores alone.
  Vec grouped_experts(const Vec& x, const std::string& at) {
    const int64_t E = j["n_routed_experts"], G = j["n_group"], hidden = j["moe_intermediate_size"];
    const Made bias = tensor(at + "gate.e_score_correction_bias", {E});
    Vec score = matmul(at + "gate.weight", E, x), choice, groups;
    for (double& a : score) a = 1 / (1 + std::exp(-a));
    for (int64_t e = 0; e < E; ++e) choice.push_back(score[size_t(e)] + bias.values[size_t(e)]);
    for (int64_t g = 0; g < G; ++g) {
      Vec own(choice.begin() + g * (E / G), choice.begin() + (g + 1) * (E / G));
      std::ranges::sort(own, std::greater{});
      groups.push_back(own[0] + own[1]);
    }
    Vec sorted = groups, open;
    std::ranges::sort(sorted, std::greater{});
    for (int64_t e = 0; e < E; ++e)
      if (groups[size_t(e / (E / G))] < sorted[size_t(j["topk_group"]) - 1])
        choice[size_t(e)] = -1e9;
    open = choice;
    std::ranges::sort(open, std::greater{});
    const double least = open[size_t(j["num_experts_per_tok"]) - 1];
    double sum = 1e-20;
    for (int64_t e = 0; e < E; ++e)
      if (choice[size_t(e)] >= least) sum += score[size_t(e)];
    if (!j["norm_topk_prob"]) sum = 1;
    Vec y = mlp(x, at + "shared_experts.", hidden * int64_t(j["n_shared_experts"]));
    for (int64_t e = 0; e < E; ++e) {
      const Vec out = mlp(x, at + "experts." + std::to_string(e) + ".", hidden);
      const double weight = choice[size_t(e)] < least ? 0 : score[size_t(e)] / sum;
      for (size_t i = 0; i < out.size(); ++i)
        y[i] += weight * double(j["routed_scaling_factor"]) * out[i];
    }
    return y;
  }
  // Softmax over all experts; the best ones by their weights, which are divided by their sum if the
  // model says so.
  Vec experts(const Vec& x, const std::string& block) {
    if (latent()) return grouped_experts(x, block + "mlp.");
    const bool mixtral = type_ == "mixtral";
    const std::string at = block + (mixtral ? "block_sparse_moe." : "mlp.");
    const int64_t E = j[mixtral ? "num_local_experts" : "num_experts"];
    const int64_t hidden = j[mixtral ? "intermediate_size" : "moe_intermediate_size"];
    Vec p = matmul(at + "gate.weight", E, x);
    double sum = 0, chosen = 0;
    for (double& a : p) sum += a = std::exp(a);
    for (double& a : p) a /= sum;
    Vec sorted = p;
    std::ranges::sort(sorted, std::greater{});
    const double least = sorted[size_t(j["num_experts_per_tok"]) - 1];
    for (const double a : p) chosen += a >= least ? a : 0;
    if (!mixtral && !j["norm_topk_prob"]) chosen = 1;
    Vec y(size_t(dim()), 0);
    for (int64_t e = 0; e < E; ++e) {
      const std::string own = at + "experts." + std::to_string(e) + ".";
      Vec gate = matmul(own + (mixtral ? "w1" : "gate_proj") + ".weight", hidden, x);
      const Vec up = matmul(own + (mixtral ? "w3" : "up_proj") + ".weight", hidden, x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = act(j["hidden_act"], gate[i]) * up[i];
      const Vec out = matmul(own + (mixtral ? "w2" : "down_proj") + ".weight", dim(), gate);
      const double weight = p[size_t(e)] >= least ? p[size_t(e)] / chosen : 0;
      for (size_t i = 0; i < out.size(); ++i) y[i] += weight * out[i];
    }
    return y;
  }

  static void add(Vec& to, const Vec& x) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += x[i];
  }

  void block(std::vector<Vec>& x, int64_t layer) {
    const std::string at =
        (neox() ? "gpt_neox.layers." : "model.layers.") + std::to_string(layer) + ".";
    const bool after = type_ == "olmo2";
    std::vector<Vec> in = x;
    if (!after)
      for (Vec& v : in) v = norm(v, at + "input_layernorm");
    std::vector<Vec> branch = attention(in, at + (neox() ? "attention." : "self_attn."), layer);
    for (size_t t = 0; t < x.size(); ++t) {
      const Vec before = x[t];
      if (after || sandwich()) branch[t] = norm(branch[t], at + "post_attention_layernorm");
      add(x[t], branch[t]);
      const bool parallel = neox() && j.value("use_parallel_residual", true);
      Vec y = parallel ? before : x[t];
      if (sandwich())
        y = norm(y, at + "pre_feedforward_layernorm");
      else if (!after)
        y = norm(y, at + "post_attention_layernorm");
      y = has_experts(layer) ? experts(y, at) : mlp(y, at + "mlp.");
      if (after || sandwich()) y = norm(y, at + "post_feedforward_layernorm");
      add(x[t], y);
    }
  }

  const nlohmann::json j;
  const std::string type_;
  std::map<std::string, Made> made_;
};

// Expects both folders to hold the same tensors, byte for byte.
inline void expect_same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const Safetensors before(a), after(b);
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, t] : before.tensors()) {
    const StoredTensor* other = after.find(name);
    ASSERT_TRUE(other) << name;
    EXPECT_EQ(t.shape, other->shape) << name;
    EXPECT_TRUE(std::ranges::equal(t.bytes, other->bytes)) << name;
  }
}

}  // namespace hearth::test
