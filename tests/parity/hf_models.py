#!/usr/bin/env python3
"""hearth's model folders against transformers, both ways.

Ten random models of each model_type in odd shapes are saved by transformers (float32, bfloat16 or
float16, some in shards) and read by hearth; hearth converts each and transformers reads it back; and
some models are trained by hearth for 20 steps and read by transformers. Logits in float32 must agree
within 1e-4 and 64 greedy tokens must be equal.

  python3 tests/parity/hf_models.py build/hearth tests/parity/results/hf_models.json [cpu|cuda]

The last argument is the device that hearth computes on. Needs transformers 5 with PyTorch (CPU is enough); about two minutes on 16 cores.
"""
import json
import multiprocessing
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HEARTH, OUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
TOLERANCE, GREEDY = 1e-4, 64
EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3")
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", factor=2.0)


def longrope(pairs, original, **more):
    """Keys of a phi3. transformers chooses the factors by each text, hearth by the longest one: cases have texts on
    one side of the original length only."""
    scaling = dict(rope_type="longrope", short_factor=[1 + i / 7 for i in range(pairs)],
                   long_factor=[1.25 + i * i / 3 for i in range(pairs)], **more)
    return dict(rope=scaling, original_max_position_embeddings=original)


def gpt2(name, save={}, **k):
    base = dict(vocab_size=257, n_positions=160, n_embd=64, n_layer=2, n_head=4)
    return name, "gpt2", {**base, **k}, save


def llama(name, theta=1e4, rope={}, save={}, kind="llama", **k):
    base = dict(vocab_size=257, max_position_embeddings=160, hidden_size=64, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, intermediate_size=172,
                tie_word_embeddings=False)
    if kind in ("qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"):
        base["head_dim"] = 16
    rope = {"rope_type": "default", **rope, "rope_theta": theta}
    return name, kind, {**base, **k, "rope_parameters": rope}, save


def qwen3(name, **k):
    return llama(name, kind="qwen3", **k)


def relatives(kind, extra={}, **special):
    """Ten models of a llama-like type: shapes that all types have, and those that are given."""
    shapes = {
        "plain": {},
        "one-kv": dict(num_key_value_heads=1),
        "tied": dict(tie_word_embeddings=True),
        "theta-5e5-vocab-50257": dict(theta=5e5, vocab_size=50257),
        "bf16-shards": dict(num_hidden_layers=3, save=dict(dtype="bfloat16", shard="60KB")),
        "f16-mha": dict(num_key_value_heads=4, save=dict(dtype="float16")),
        "odd": dict(vocab_size=1003, hidden_size=90, num_attention_heads=5, num_key_value_heads=1,
                    intermediate_size=77, rms_norm_eps=1e-5),
        **special,
    }
    return [llama(name, kind=kind, **{**extra, **k}) for name, k in shapes.items()]


def neox(name, rotary=0.25, theta=1e4, save={}, **k):
    base = dict(vocab_size=257, max_position_embeddings=160, hidden_size=64, num_hidden_layers=2,
                num_attention_heads=4, intermediate_size=172, tie_word_embeddings=False)
    rope = dict(rope_type="default", rope_theta=theta, partial_rotary_factor=rotary)
    return name, "gpt_neox", {**base, **k, "rope_parameters": rope}, save


def gemma3(name, theta=1e6, local=1e4, rope={}, save={}, **k):
    both = dict(full_attention={"rope_type": "default", **rope, "rope_theta": theta},
                sliding_attention=dict(rope_type="default", rope_theta=local))
    name, kind, keys, save = llama(name, kind="gemma3_text", save=save, **k)
    keys["rope_parameters"] = both
    usual = dict(sliding_window=9, tie_word_embeddings=True, num_hidden_layers=7)
    return name, kind, {**keys, **usual, **k}, save


def layers(pattern):
    return ["sliding_attention" if c == "S" else "full_attention" for c in pattern]


DEEPSEEK = dict(num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=12,
                qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=12, num_experts_per_tok=3,
                moe_intermediate_size=28, n_shared_experts=1, n_group=4, topk_group=2,
                first_k_dense_replace=1, routed_scaling_factor=2.5)
PARTIAL = dict(partial_rotary_factor=0.5)
CAPPED = dict(sliding_window=9, query_pre_attn_scalar=16)


MODELS = [
    gpt2("plain"),
    gpt2("vocab-50257", vocab_size=50257),
    gpt2("head-80", n_embd=240, n_head=3),
    gpt2("untied", tie_word_embeddings=False),
    gpt2("n-inner", n_inner=100),
    gpt2("erf-gelu", activation_function="gelu"),
    gpt2("bf16", save=dict(dtype="bfloat16")),
    gpt2("f16-shards", n_layer=3, save=dict(dtype="float16", shard="100KB")),
    gpt2("one-head-odd-width", n_embd=54, n_head=1, layer_norm_epsilon=1e-6),
    gpt2("five-layers", n_layer=5, n_head=8, vocab_size=1001),
    llama("plain"),
    llama("head-80-one-kv", head_dim=80, num_key_value_heads=1, vocab_size=50257),
    llama("tied", tie_word_embeddings=True),
    llama("theta-5e5-llama3", theta=5e5, rope=LLAMA3),
    llama("biases", attention_bias=True, mlp_bias=True),
    llama("linear", rope=LINEAR),
    llama("yarn", rope=YARN, theta=1e6),
    llama("bf16-shards", num_hidden_layers=3, save=dict(dtype="bfloat16", shard="60KB")),
    llama("f16-mha", num_key_value_heads=4, save=dict(dtype="float16")),
    llama("odd", vocab_size=1003, hidden_size=90, num_attention_heads=5, num_key_value_heads=1,
          intermediate_size=77, rms_norm_eps=1e-5),
    qwen3("plain"),
    qwen3("head-80-one-kv", head_dim=80, num_key_value_heads=1),
    qwen3("vocab-50257", vocab_size=50257, tie_word_embeddings=True),
    qwen3("theta-5e5", theta=5e5),
    qwen3("attention-bias", attention_bias=True),
    qwen3("yarn", rope=YARN, theta=1e6),
    qwen3("window", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    qwen3("bf16", save=dict(dtype="bfloat16")),
    qwen3("f16-shards", num_hidden_layers=3, save=dict(dtype="float16", shard="60KB")),
    qwen3("odd", vocab_size=1003, hidden_size=90, num_attention_heads=6, num_key_value_heads=3,
          head_dim=34, intermediate_size=77),
    *relatives("qwen2", **{
        "window": dict(use_sliding_window=True, sliding_window=8, max_window_layers=1),
        "yarn": dict(rope=YARN, theta=1e6), "linear": dict(rope=LINEAR)}),
    *relatives("mistral", **{
        "window": dict(sliding_window=8), "no-window": dict(sliding_window=None),
        "head-80": dict(head_dim=80, sliding_window=30)}),
    *relatives("smollm3", extra=dict(pad_token_id=None), **{
        "every-second": dict(no_rope_layer_interval=2, num_hidden_layers=5),
        "listed": dict(no_rope_layers=[0, 1, 1], num_hidden_layers=3),
        "biases": dict(attention_bias=True, mlp_bias=True, num_hidden_layers=4)}),
    *relatives("olmo2", extra=dict(pad_token_id=None), **{
        "bias": dict(attention_bias=True), "linear": dict(rope=LINEAR),
        "five-layers": dict(num_hidden_layers=5)}),
    *relatives("phi3", extra=dict(pad_token_id=None), **{
        "partial": dict(rope=PARTIAL), "window": dict(sliding_window=8),
        "partial-odd": dict(rope=dict(partial_rotary_factor=0.75), num_attention_heads=2,
                            num_key_value_heads=2),
        "longrope-long": longrope(8, original=6),
        "longrope-short": dict(longrope(8, original=160), max_position_embeddings=640),
        "longrope-partial": longrope(6, original=6, partial_rotary_factor=0.75),
        "longrope-attention-factor": longrope(8, original=6, attention_factor=1.5)}),
    *relatives("mixtral", extra=dict(num_local_experts=4, num_experts_per_tok=2), **{
        "eight-experts": dict(num_local_experts=8), "window": dict(sliding_window=8),
        "top-1-five-layers": dict(num_experts_per_tok=1, num_hidden_layers=5)}),
    *relatives("qwen3_moe", extra=dict(num_experts=6, num_experts_per_tok=3,
                                       moe_intermediate_size=44, norm_topk_prob=True), **{
        "not-normed": dict(norm_topk_prob=False, num_experts=16, num_experts_per_tok=5),
        "dense-layers": dict(mlp_only_layers=[0, 3], num_hidden_layers=4),
        "every-second": dict(decoder_sparse_step=2, num_hidden_layers=5, attention_bias=True)}),
    *relatives("deepseek_v3", extra=DEEPSEEK, **{
        "one-kv": dict(num_attention_heads=1, num_key_value_heads=1),
        "odd": dict(vocab_size=1003, hidden_size=90, num_attention_heads=5,
                                  num_key_value_heads=5, intermediate_size=77, kv_lora_rank=13,
                                  qk_nope_head_dim=9, qk_rope_head_dim=6, v_head_dim=7),
        "no-q-latent": dict(q_lora_rank=None, n_group=1, topk_group=1, norm_topk_prob=False),
        "yarn-dense-layers": dict(rope=dict(YARN, mscale=1.0, mscale_all_dim=1.0), theta=1e6,
                                  first_k_dense_replace=2, num_hidden_layers=5),
        "biases-halves": dict(attention_bias=True, rope_interleave=False, n_shared_experts=3)}),
    neox("plain"),
    neox("rotary-1", rotary=1.0),
    neox("rotary-half", rotary=0.5, theta=1e5),
    neox("sequential", use_parallel_residual=False),
    neox("tied", tie_word_embeddings=True),
    neox("no-attention-bias", attention_bias=False),
    neox("tanh-gelu", hidden_act="gelu_new", vocab_size=50257),
    neox("bf16", save=dict(dtype="bfloat16")),
    neox("f16-shards", num_hidden_layers=3, save=dict(dtype="float16", shard="100KB")),
    neox("odd", vocab_size=1003, hidden_size=80, num_attention_heads=5, intermediate_size=77,
         layer_norm_eps=1e-6),
    *relatives("gemma", extra=dict(tie_word_embeddings=True), **{
        "head-34": dict(head_dim=34), "bias": dict(attention_bias=True),
        "erf": dict(hidden_act="gelu")}),
    *relatives("gemma2", extra=dict(tie_word_embeddings=True, **CAPPED), **{
        "scalar": dict(query_pre_attn_scalar=23),
        "uncapped": dict(attn_logit_softcapping=None, final_logit_softcapping=None),
        "low-caps": dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                         num_hidden_layers=3, layer_types=layers("LSS"))}),
    gemma3("plain"),
    gemma3("one-kv-six-layers", num_hidden_layers=6, num_key_value_heads=1),
    gemma3("layers", num_hidden_layers=3, layer_types=layers("SLS"), sliding_window=5),
    gemma3("local-100", local=100.0),
    gemma3("linear", rope=dict(rope_type="linear", factor=8.0)),
    gemma3("scalar-capped", query_pre_attn_scalar=23, final_logit_softcapping=3.0),
    gemma3("untied-vocab-50257", tie_word_embeddings=False, vocab_size=50257),
    gemma3("bf16", save=dict(dtype="bfloat16")),
    gemma3("f16-shards", save=dict(dtype="float16", shard="60KB")),
    gemma3("odd", vocab_size=1003, hidden_size=90, num_attention_heads=6, num_key_value_heads=3,
           head_dim=34, intermediate_size=77),
]

SMALL = ["--layers", "2", "--dim", "64", "--heads", "4", "--vocab", "257", "--context", "160",
         "--kv-heads", "0", "--head-dim", "0", "--hidden", "0"]
TRAINED = [
    ("gpt2", ["--preset", "gpt2", *SMALL]),
    ("gpt2 head-80", ["--preset", "gpt2", *SMALL, "--dim", "160", "--heads", "2"]),
    ("llama interleaved, out bias", ["--preset", "llama3-16k", *SMALL, "--kv-heads", "2"]),
    ("llama llama3 untied", ["--preset", "modern-124m", *SMALL, "--kv-heads", "1", "--qk-norm",
                             "none", "--no-tied", "--rope-theta", "500000", "--rope-scaling",
                             "llama3", "--rope-factor", "8", "--rope-context", "64",
                             "--head-dim", "80"]),
    ("qwen3", ["--preset", "modern-124m", *SMALL, "--kv-heads", "2"]),
    ("qwen2", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--qkv-bias"]),
    ("mistral", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--window", "9"]),
    ("smollm3", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--rope-pattern", "RN"]),
    ("phi3", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--rotary", "0.5",
              "--no-tied"]),
    ("phi3 longrope", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--rotary", "0.5",
                       "--no-tied", "--rope-scaling", "longrope", "--rope-context", "6",
                       "--rope-factor", "10", "--rope-short-factors", "1,2,3,4",
                       "--rope-long-factors", "1,3,9,40"]),
    ("olmo2", ["--preset", "modern-124m", *SMALL, "--qk-norm-whole", "--norm-place", "after",
               "--no-tied"]),
    ("gpt_neox", ["--preset", "gpt2", *SMALL, "--position", "rope", "--rotary", "0.25",
                  "--parallel-residual", "--no-tied", "--act", "gelu_erf"]),
    ("gemma2", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--norm-place", "sandwich",
                "--embed-scale", "8", "--act", "geglu_tanh", "--logit-softcap", "30",
                "--attention-softcap", "50", "--window", "9", "--window-pattern", "SL"]),
    ("gemma3", ["--preset", "modern-124m", *SMALL, "--norm-place", "sandwich", "--embed-scale", "8",
                "--act", "geglu_tanh", "--window", "9", "--window-pattern", "SL", "--rope-pattern",
                "LR"]),
    ("mixtral", ["--preset", "modern-124m", *SMALL, "--qk-norm", "none", "--no-tied", "--experts",
                 "4"]),
    ("qwen3_moe", ["--preset", "modern-124m", *SMALL, "--experts", "6", "--top-k", "3",
                   "--expert-hidden", "24", "--first-dense-layers", "1"]),
    ("deepseek_v3", ["--preset", "mla-124m", *SMALL, "--v-head-dim", "12", "--kv-latent", "24",
                     "--nope-dim", "8", "--rope-dim", "8", "--q-latent", "20", "--no-tied"]),
    ("qwen3 interleaved", ["--preset", "modern-124m", *SMALL, "--kv-heads", "1", "--head-dim",
                           "80", "--rope-pairs", "interleaved"]),
]


def hearth(*args):
    run = subprocess.run([HEARTH, *map(str, args)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"hearth {args[0]}: {run.stderr.strip()[-300:]}")


def prompts_of(vocab, seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (1, n), generator=g) for n in (90, 7)]


def ours(folder, prompts, work):
    from safetensors.torch import load_file
    ids, out = work / "ids.txt", work / "logits.safetensors"
    ids.write_text("".join(" ".join(map(str, p[0].tolist())) + "\n" for p in prompts))
    hearth("eval", "--model", folder, "--task", "logits", "--data", ids, "--out", out, "--greedy",
           GREEDY, "--threads", 1, "--device", DEVICE, "--dtype", "fp32")
    return load_file(out)


def theirs(folder, prompts):
    import torch
    from transformers import AutoModelForCausalLM
    kind = json.load(open(os.path.join(folder, "config.json")))["model_type"]
    # The default of models with experts, grouped_mm, takes no rows that are not multiples of 16 bytes.
    plain = dict(experts_implementation="eager") if kind in EXPERTS else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager", **plain).eval()
    for c in (model.config, model.generation_config):
        c.eos_token_id = c.bos_token_id = c.pad_token_id = None
    result = {}
    with torch.no_grad():
        for i, p in enumerate(prompts):
            result[f"logits.{i}"] = model(p).logits[0]
            made = model.generate(p, attention_mask=torch.ones_like(p), do_sample=False,
                                  max_new_tokens=GREEDY, pad_token_id=0)
            result[f"greedy.{i}"] = made[0, p.shape[1]:]
    return result


def differences(a, b):
    error = max((a[k] - b[k]).abs().max().item() for k in a if k.startswith("logits"))
    equal = all(a[k].tolist() == b[k].tolist() for k in a if k.startswith("greedy"))
    return {"logits_max_error": error, "greedy_equal": equal}


def read(case):  # saved by transformers, read by hearth, converted by hearth, read by transformers
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    name, kind, keys, save = case
    torch.manual_seed(len(name) + len(kind))
    config = AutoConfig.for_model(kind, initializer_range=0.08, **keys)
    model = AutoModelForCausalLM.from_config(config).eval()
    biases = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for p in [*model.parameters(), *biases]:  # biases and gains too
        if p.ndim == 1:
            torch.nn.init.normal_(p, mean=p.mean().item(), std=0.1)
    model.to(getattr(torch, save.get("dtype", "float32")))
    prompts = prompts_of(config.vocab_size, 1)
    with tempfile.TemporaryDirectory() as t:
        work = pathlib.Path(t)
        model.save_pretrained(work / "hub", max_shard_size=save.get("shard", "5GB"))
        shards = len(list((work / "hub").glob("*.safetensors")))
        want, got = theirs(work / "hub", prompts), ours(work / "hub", prompts, work)
        shard_bytes = 50000 if "shard" in save else 5 * 10**9
        hearth("convert", "--from", work / "hub", "--to", work / "back", "--shard-bytes",
               shard_bytes)
        back = theirs(work / "back", prompts)
        exact = all(bool((want[k] == back[k]).all()) for k in want)
        return {"model": f"{kind} {name}", "dtype": save.get("dtype", "float32"),
                "shards": shards, "read": differences(want, got),
                "written": {**differences(want, back), "same_bits": exact}}


def train(case):  # trained by hearth, read by transformers
    import torch
    name, flags = case
    with tempfile.TemporaryDirectory() as t:
        work = pathlib.Path(t)
        tokens = torch.randint(257, (20000,), generator=torch.Generator().manual_seed(3)).tolist()
        header = [20240520, 1, len(tokens)] + [0] * 253
        (work / "data.bin").write_bytes(struct.pack("<256i", *header) +
                                        struct.pack(f"<{len(tokens)}H", *tokens))
        hearth("pretrain", *flags, "--data", work / "data.bin", "--val", work / "data.bin", "--run",
               work / "run", "--steps", 20, "--batch", 4, "--seq", 64, "--lr", 3e-3,
               "--eval-tokens", 1024, "--init-std", 0.08, "--threads", 1, "--device", DEVICE,
               "--dtype", "fp32")
        folder = os.path.realpath(work / "run" / "latest")
        prompts = prompts_of(257, 2)
        kind = json.load(open(os.path.join(folder, "config.json")))["model_type"]
        if not kind.startswith(name.split()[0]):
            raise RuntimeError(f"hearth wrote the model_type {kind}")
        result = differences(theirs(folder, prompts), ours(work / "run", prompts, work))
        return {"model": name, "model_type": kind, "steps": 20, "written": result}


def one(job):
    import torch
    torch.set_num_threads(1)
    what, case = job
    try:
        return what.__name__, what(case)
    except Exception as e:  # the table should say which
        return what.__name__, {"model": str(case[:2]), "error": f"{type(e).__name__}: {e}"[:400]}


def good(row):
    return "error" not in row and all(
        r["logits_max_error"] <= TOLERANCE and r["greedy_equal"]
        for r in (row.get("read"), row.get("written")) if r)


def main():
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    jobs = [(read, m) for m in MODELS] + [(train, m) for m in TRAINED]
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        rows = pool.map(one, jobs, chunksize=1)
    report = {"transformers": transformers.__version__, "torch": torch.__version__,
              "tolerance": TOLERANCE, "greedy_tokens": GREEDY,
              "models": len(rows), "passed": sum(good(r) for _, r in rows),
              "read": [r for kind, r in rows if kind == "read"],
              "trained": [r for kind, r in rows if kind == "train"]}
    with open(OUT, "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    for _, r in rows:
        print("ok  " if good(r) else "FAIL", json.dumps(r))
    print(f"{report['passed']} of {report['models']}")
    sys.exit(0 if report["passed"] == report["models"] else 1)


if __name__ == "__main__":
    main()
