"""The random models of gguf.py, as flags of hearth pretrain: every architecture of GGUF that hearth writes.

Each is (name, architecture in GGUF, vocabulary, flags). Weights are large, so that attention looks at few tokens and
greedy tokens vary.
"""
SMALL = ["--layers", 2, "--dim", 64, "--heads", 4, "--context", 160, "--kv-heads", 0,
         "--head-dim", 0, "--hidden", 0, "--init-std", 0.2, "--embed-std", 0.05]
MODERN = ["--preset", "modern-124m", *SMALL, "--kv-heads", 2]
LLAMA = [*MODERN, "--qk-norm", "none"]
ODD = ["--dim", 90, "--heads", 5, "--kv-heads", 1, "--hidden", 77, "--layers", 3]
WIDE = ["--head-dim", 34]  # heads that are wider than the model
LLAMA3 = ["--rope-scaling", "llama3", "--rope-factor", 8, "--rope-context", 64]
LINEAR = ["--rope-scaling", "linear", "--rope-factor", 2]
# llama.cpp rounds a context up to 256 tokens before it chooses the factors.
LONGROPE = ["--rope-scaling", "longrope", "--rope-factor", 12, "--rope-short-factors", "1,1.1,1.3,1.6,2,2.5,3,4",
            "--rope-long-factors", "1,1.5,2,4,8,16,32,60"]
YARN = ["--rope-scaling", "yarn", "--rope-factor", 4, "--rope-context", 64, "--rope-low", 1,
        "--rope-high", 32]
QWEN2 = [*LLAMA, "--qkv-bias", "--layout", "qwen2"]
SMOLLM3 = [*LLAMA, "--rope-pattern", "RRRN", "--layers", 5, "--layout", "smollm3"]
OLMO2 = [*MODERN, "--qk-norm-whole", "--norm-place", "after", "--no-tied"]
NEOX = ["--preset", "gpt2", *SMALL, "--position", "rope", "--rotary", 0.25, "--parallel-residual", "--no-tied"]
PHI3 = [*LLAMA, "--layout", "phi3"]
GEMMA = [*LLAMA, "--embed-scale", 8, "--act", "geglu_tanh"]
SANDWICH = ["--norm-place", "sandwich", "--window", 9]
GEMMA2 = [*GEMMA, *SANDWICH, "--window-pattern", "SL", "--layers", 3, "--attention-softcap", 5,
          "--logit-softcap", 8]
GEMMA3 = [*GEMMA, *SANDWICH, "--qk-norm", "before_rope", "--window-pattern", "SSSSSL", "--rope-pattern",
          "LLLLLR", "--layers", 7, "--rope-theta", 1e6]
SCALE_90 = ["--embed-scale", 90 ** 0.5]  # of ODD
MIXTRAL = [*LLAMA, "--experts", 4, "--top-k", 2, "--expert-hidden", 64]
QWEN3MOE = [*MODERN, "--experts", 8, "--top-k", 3, "--expert-hidden", 32]
LATENT = ["--preset", "mla-124m", *SMALL, "--kv-latent", 24, "--nope-dim", 16, "--rope-dim", 8,
          "--v-head-dim", 12]
ROUTED = ["--experts", 8, "--top-k", 2, "--expert-hidden", 32, "--shared-experts", 1,
          "--first-dense-layers", 1, "--router", "sigmoid", "--router-bias", "--router-scale", 2.5]
SCALED = [*YARN, "--rope-pairs", "interleaved"]

MODELS = [
    ("gpt2", "gpt2", 257, ["--preset", "gpt2", *SMALL]),
    ("gpt2 odd, untied", "gpt2", 1003,
     ["--preset", "gpt2", *SMALL, "--dim", 54, "--heads", 3, "--hidden", 100, "--layers", 5, "--no-tied"]),
    ("gptneox", "gptneox", 257, [*NEOX, "--act", "gelu_erf"]),
    ("gptneox odd, tanh, in sequence", "gptneox", 1003,
     [*NEOX, "--dim", 90, "--heads", 5, "--hidden", 77, "--layers", 3, "--rotary", 1, "--no-parallel-residual"]),
    ("gptneox half rotated, linear", "gptneox", 257, [*NEOX, "--rotary", 0.5, "--act", "gelu_erf", *LINEAR]),
    ("llama", "llama", 257, LLAMA),
    ("llama odd, untied, theta 5e5", "llama", 1003, [*LLAMA, *ODD, "--no-tied", "--rope-theta", 500000]),
    ("llama untied, head 80, llama3", "llama", 257,
     [*LLAMA, "--no-tied", "--head-dim", 80, "--rope-theta", 500000, *LLAMA3]),
    ("llama interleaved, out bias", "llama", 257, ["--preset", "llama3-16k", *SMALL]),
    ("llama biases, linear", "llama", 257,
     [*LLAMA, "--qkv-bias", "--out-bias", "--mlp-bias", *LINEAR]),
    ("llama yarn", "llama", 257, [*LLAMA, *YARN, "--norm-eps", 1e-5]),
    ("mistral without a window", "llama", 257, [*LLAMA, *WIDE, "--layout", "mistral"]),
    ("qwen2", "qwen2", 257, QWEN2),
    ("qwen2 odd, untied, linear", "qwen2", 1003, [*QWEN2, *ODD, "--no-tied", *LINEAR]),
    ("qwen2 yarn", "qwen2", 257, [*QWEN2, *YARN, "--rope-theta", 1e6]),
    ("qwen3", "qwen3", 257, MODERN),
    ("qwen3 odd, head 34, untied", "qwen3", 1003, [*MODERN, *ODD, *WIDE, "--no-tied"]),
    ("qwen3 head 80, yarn", "qwen3", 257, [*MODERN, "--head-dim", 80, *YARN]),
    ("smollm3", "smollm3", 257, SMOLLM3),
    ("smollm3 odd, head 34, untied, yarn", "smollm3", 1003,
     [*SMOLLM3, *ODD, *WIDE, "--layers", 8, "--no-tied", *YARN]),
    ("olmo2", "olmo2", 257, OLMO2),
    ("olmo2 odd, linear", "olmo2", 1003, [*OLMO2, *ODD, *LINEAR]),
    ("olmo2 yarn", "olmo2", 257, [*OLMO2, *YARN]),
    ("gemma", "gemma", 257, GEMMA),
    ("gemma odd, head 34, linear", "gemma", 1003, [*GEMMA, *ODD, *WIDE, *SCALE_90, *LINEAR]),
    ("gemma2", "gemma2", 257, GEMMA2),
    ("gemma2 odd, head 34, linear", "gemma2", 1003, [*GEMMA2, *ODD, *WIDE, *SCALE_90, *LINEAR]),
    ("gemma2 of 46 layers, which scale scores by the width of the model", "gemma2", 257,
     [*GEMMA2, "--layers", 46, *WIDE, "--score-scale", 0.25]),
    ("gemma2 yarn", "gemma2", 257, [*GEMMA2, *YARN]),
    ("gemma3", "gemma3", 257, GEMMA3),
    ("gemma3 of 62 layers", "gemma3", 257,
     [*GEMMA3, "--layers", 62, *WIDE, "--score-scale", 0.25]),
    ("gemma3 odd, head 34, linear, logits capped", "gemma3", 1003,
     [*GEMMA3, *ODD, *WIDE, *SCALE_90, *LINEAR, "--layers", 7, "--logit-softcap", 8]),
    ("phi3", "phi3", 257, [*PHI3, "--no-tied"]),
    ("phi3 odd, tied", "phi3", 1003, [*PHI3, *ODD]),
    ("phi3 three quarters rotated", "phi3", 257, [*PHI3, "--rotary", 0.75, "--no-tied"]),
    ("phi3 half rotated", "phi3", 257, [*PHI3, "--rotary", 0.5, "--no-tied"]),
    ("phi3 longrope, long factors", "phi3", 257, [*PHI3, "--no-tied", *LONGROPE, "--rope-context", 4]),
    ("phi3 longrope, short factors", "phi3", 257, [*PHI3, "--no-tied", *LONGROPE, "--rope-context", 1024]),
    ("phi3 longrope, three quarters rotated", "phi3", 257,
     [*PHI3, "--rotary", 0.75, "--no-tied", *LONGROPE, "--rope-context", 4, "--rope-short-factors", "1,1.1,1.2,2,3,4",
      "--rope-long-factors", "1,2,4,8,16,50"]),
    ("llama longrope", "llama", 257, [*LLAMA, *LONGROPE, "--rope-context", 4, "--rope-attention-factor", 1.4]),
    ("mixtral", "llama", 257, MIXTRAL),
    ("mixtral odd, top 1, untied, llama3", "llama", 1003,
     [*MIXTRAL, *ODD, "--experts", 5, "--top-k", 1, "--expert-hidden", 44, "--no-tied", *LLAMA3]),
    ("mixtral head 34, top 3, yarn", "llama", 257, [*MIXTRAL, *WIDE, "--experts", 6, "--top-k", 3, *YARN]),
    ("qwen3moe", "qwen3moe", 257, QWEN3MOE),
    ("qwen3moe odd, head 34, untied, linear", "qwen3moe", 1003,
     [*QWEN3MOE, *ODD, *WIDE, "--expert-hidden", 13, "--no-tied", *LINEAR]),
    ("deepseek2 groups, halves", "deepseek2", 257,
     [*LATENT, "--q-latent", 16, *ROUTED, "--expert-groups", 4, "--top-groups", 2]),
    ("deepseek2 of 26 layers, modules that are left out", "deepseek2", 257,
     [*LATENT, *ROUTED, "--layers", 26, "--init-std", 0.1, "--mtp", 1]),
    ("deepseek2 dense, yarn", "deepseek2", 257,
     [*LATENT, *SCALED, "--yarn-mscale", 0.707, "--yarn-mscale-all", 0.707]),
    ("deepseek2 odd, untied, weights not divided by their sum", "deepseek2", 1003,
     [*LATENT, *ROUTED, *ODD, "--kv-heads", 0, "--kv-latent", 13, "--nope-dim", 9, "--rope-dim", 6, "--v-head-dim", 7,
      "--experts", 6, "--top-k", 4, "--expert-hidden", 11, "--shared-experts", 3, "--no-norm-topk", "--no-tied"]),
    ("deepseek2 experts in all layers, yarn", "deepseek2", 257,
     [*LATENT, *ROUTED, *SCALED, "--first-dense-layers", 0, "--q-latent", 20, "--yarn-mscale", 1,
      "--yarn-mscale-all", 1]),
]

# Rows of these are whole blocks of 256.
QUANTISED = [
    ("llama", [*LLAMA, "--dim", 256, "--heads", 2, "--kv-heads", 1, "--hidden", 512]),
    ("mixtral", [*MIXTRAL, "--dim", 256, "--heads", 2, "--kv-heads", 1, "--expert-hidden", 256, "--experts", 3]),
    ("deepseek2", [*LATENT, *ROUTED, "--dim", 256, "--heads", 2, "--kv-latent", 256, "--nope-dim", 256, "--rope-dim",
                   64, "--v-head-dim", 128, "--q-latent", 256, "--hidden", 256, "--experts", 3, "--expert-hidden",
                   256]),
]
# ggml's names of all quantised types that hearth reads, and hearth's of those that it writes.
READ = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "q8_K"]
WRITTEN = ["q8_0", "q6_k", "q4_k", "q4_0"]
