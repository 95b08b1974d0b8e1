#!/usr/bin/env python3
"""hearth's adapters against PEFT's.

Random models of gpt2, llama and qwen3 shapes are made by transformers, adapters with random numbers
beside them: by peft where it can be imported, else in its layout by this script, which then applies
its formula, W x + scale B A x, to the modules of the model. hearth must give the same logits
(1e-4, float32) and 64 equal greedy tokens with --adapter, and transformers the same with the folder
that `hearth convert --merge` writes. With a binary that has `sft`, a folder written by
`hearth sft --lora` is read here and compared the same way.

  python3 tests/parity/lora.py build/hearth tests/parity/results/lora.json

Needs transformers 5 with PyTorch (CPU is enough); about half a minute on 16 cores.
"""
import json
import math
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

HEARTH, OUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TOLERANCE, GREEDY = 1e-4, 64
try:
    import peft
except ImportError:
    peft = None

GPT2 = dict(vocab_size=257, n_positions=160, n_embd=64, n_layer=2, n_head=4)
LLAMA = dict(vocab_size=257, max_position_embeddings=160, hidden_size=64, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, intermediate_size=172,
             tie_word_embeddings=False)
QWEN3 = dict(LLAMA, head_dim=24, num_key_value_heads=1)
ALL = {"gpt2": ["c_attn", "c_proj", "c_fc"],
       "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
ALL["qwen3"] = ALL["llama"]

# name, model_type, config, rank, alpha, targets, more of adapter_config.json
CASES = [
    ("all", "gpt2", GPT2, 8, 16, ALL["gpt2"], {}),
    ("c_attn", "gpt2", GPT2, 4, 3, ["c_attn"], {}),
    ("attn.c_proj, rank 1", "gpt2", dict(GPT2, n_embd=60, n_head=3), 1, 2, ["attn.c_proj"], {}),
    ("rslora", "gpt2", GPT2, 16, 8, ALL["gpt2"], {"use_rslora": True}),
    ("all", "llama", LLAMA, 8, 16, ALL["llama"], {}),
    ("q v", "llama", LLAMA, 4, 8, ["q_proj", "v_proj"], {}),
    ("k o gate, rank 3", "llama", dict(LLAMA, head_dim=40), 3, 1.5, ["k_proj", "o_proj",
                                                                    "gate_proj"], {}),
    ("up down, biases, rslora", "llama", dict(LLAMA, attention_bias=True, mlp_bias=True), 5, 7,
     ["up_proj", "down_proj"], {"use_rslora": True}),
    ("all, rank 64", "llama", dict(LLAMA, tie_word_embeddings=True), 64, 64, ALL["llama"], {}),
    ("all", "qwen3", QWEN3, 8, 16, ALL["qwen3"], {}),
    ("q k", "qwen3", QWEN3, 2, 4, ["q_proj", "k_proj"], {}),
    ("v up, MHA", "qwen3", dict(QWEN3, num_key_value_heads=4), 6, 12, ["v_proj", "up_proj"], {}),
]


def hearth(*args):
    run = subprocess.run([HEARTH, *map(str, args)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"hearth {args[0]}: {run.stderr.strip()[-300:]}")
    return run.stdout


def prompts_of(vocab, seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (1, n), generator=g) for n in (90, 7)]


def ours(work, prompts, *model):
    from safetensors.torch import load_file
    ids, out = work / "ids.txt", work / "logits.safetensors"
    ids.write_text("".join(" ".join(map(str, p[0].tolist())) + "\n" for p in prompts))
    hearth("eval", *model, "--task", "logits", "--data", ids, "--out", out, "--greedy", GREEDY,
           "--threads", 1, "--device", "cpu", "--dtype", "fp32")
    return load_file(out)


def run_model(model, prompts):
    import torch
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for c in (base.config, base.generation_config):
        c.eos_token_id = c.bos_token_id = c.pad_token_id = None
    result = {}
    with torch.no_grad():
        for i, p in enumerate(prompts):
            result[f"logits.{i}"] = model(p).logits[0]
            made = model.generate(input_ids=p, attention_mask=torch.ones_like(p), do_sample=False,
                                  max_new_tokens=GREEDY, pad_token_id=0)
            result[f"greedy.{i}"] = made[0, p.shape[1]:]
    return result


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def matched(model, targets):
    return [(n, m) for n, m in model.named_modules()
            if any(n == t or n.endswith("." + t) for t in targets)]


def sizes(module):  # in, out; GPT-2's Conv1D keeps its weight as (in, out)
    w = module.weight
    return (w.shape[0], w.shape[1]) if type(module).__name__ == "Conv1D" else (w.shape[1],
                                                                              w.shape[0])


def write_adapter(folder, model, base, case):
    """In PEFT's layout, by PEFT itself where it is there."""
    import torch
    from safetensors.torch import save_file
    name, kind, _, rank, alpha, targets, more = case
    if peft:
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.1, task_type="CAUSAL_LM",
                                 target_modules=targets, fan_in_fan_out=kind == "gpt2", **more)
        adapted = peft.get_peft_model(model, config)
        for n, p in adapted.named_parameters():
            if "lora_" in n:
                torch.nn.init.normal_(p.data, std=0.1)
        adapted.save_pretrained(folder)
        return
    folder.mkdir()
    tensors = {}
    for n, m in matched(model, targets):
        inner, outer = sizes(m)
        tensors[f"base_model.model.{n}.lora_A.weight"] = torch.randn(rank, inner) * 0.1
        tensors[f"base_model.model.{n}.lora_B.weight"] = torch.randn(outer, rank) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
              "lora_dropout": 0.1, "bias": "none", "target_modules": targets,
              "fan_in_fan_out": kind == "gpt2", "base_model_name_or_path": str(base),
              "modules_to_save": None, "use_dora": False, "use_rslora": False,
              "rank_pattern": {}, "alpha_pattern": {}, **more}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def with_adapter(base, folder):
    """The base with the adapter: by PEFT, or by its formula on the modules' outputs."""
    if peft:
        return peft.PeftModel.from_pretrained(load(base), folder).eval()
    from safetensors.torch import load_file
    model = load(base)
    config = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
    tensors = load_file(pathlib.Path(folder) / "adapter_model.safetensors")
    r = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(r) if config.get("use_rslora") else r)
    used = set()

    def add(a, b):
        return lambda module, args, y: y + scale * ((args[0] @ a.T) @ b.T)
    for n, m in matched(model, config["target_modules"]):
        names = [f"base_model.model.{n}.lora_{x}.weight" for x in "AB"]
        a, b = (tensors[k].float() for k in names)
        assert (a.shape[1], b.shape[0]) == sizes(m), n
        used.update(names)
        m.register_forward_hook(add(a, b))
    assert used == set(tensors), set(tensors) ^ used
    return model


def differences(a, b):
    error = max((a[k] - b[k]).abs().max().item() for k in a if k.startswith("logits"))
    equal = all(a[k].tolist() == b[k].tolist() for k in a if k.startswith("greedy"))
    return {"logits_max_error": error, "greedy_equal": equal}


def moved(a, b):
    return max((a[k] - b[k]).abs().max().item() for k in a if k.startswith("logits"))


def make_base(kind, keys, seed):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, initializer_range=0.08, **keys)
    model = AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():
        if p.ndim == 1:
            torch.nn.init.normal_(p, mean=p.mean().item(), std=0.1)
    return model


def read(case):  # an adapter of theirs: run unmerged by hearth, merged by hearth
    name, kind, keys, rank, _, _, _ = case
    model = make_base(kind, keys, len(name) + rank)
    prompts = prompts_of(keys["vocab_size"], 1)
    with tempfile.TemporaryDirectory() as t:
        work = pathlib.Path(t)
        model.save_pretrained(work / "base")
        plain = run_model(load(work / "base"), prompts)
        write_adapter(work / "adapter", model, work / "base", case)
        want = run_model(with_adapter(work / "base", work / "adapter"), prompts)
        got = ours(work, prompts, "--model", work / "base", "--adapter", work / "adapter")
        hearth("convert", "--from", work / "base", "--adapter", work / "adapter", "--merge",
               work / "merged")
        merged = run_model(load(work / "merged"), prompts)
        return {"model": f"{kind} {name}", "rank": rank, "moved": moved(want, plain),
                "unmerged": differences(want, got), "merged": differences(want, merged)}


def trained(case):  # an adapter of hearth's: trained by its sft, read here
    import torch
    kind, keys, flags = case
    model = make_base(kind, keys, 5)
    prompts = prompts_of(256, 2)
    with tempfile.TemporaryDirectory() as t:
        work = pathlib.Path(t)
        model.save_pretrained(work / "base")
        # Every byte a token, as a tiktoken-free byte-level BPE without merges.
        symbols = {}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in shown]
        for b in shown:
            symbols[chr(b)] = b
        for i, b in enumerate(rest):
            symbols[chr(256 + i)] = b
        symbols["<|endoftext|>"] = 256
        (work / "base" / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "added_tokens": [{"id": 256, "content": "<|endoftext|>",
                                                "special": True, "single_word": False,
                                                "lstrip": False, "rstrip": False,
                                                "normalized": False}],
            "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                              "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "vocab": symbols, "merges": []}}))
        (work / "base" / "tokenizer_config.json").write_text(json.dumps(
            {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}))
        g = torch.Generator().manual_seed(4)
        rows = [{"prompt": f"What is {a} and {b}? ", "completion": f"It is {a + b}."}
                for a, b in torch.randint(50, (64, 2), generator=g).tolist()]
        (work / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        hearth("sft", "--model", work / "base", "--data", work / "data.jsonl", "--run",
               work / "run", "--steps", 10, "--batch", 4, "--max-length", 64, "--lr", 1e-2,
               "--lora", *flags, "--threads", 1, "--device", "cpu", "--dtype", "fp32")
        folder = os.path.realpath(work / "run" / "latest")
        plain = run_model(load(work / "base"), prompts)
        want = run_model(with_adapter(work / "base", folder), prompts)
        got = ours(work, prompts, "--model", work / "base", "--adapter", work / "run")
        return {"model": f"{kind} after 10 steps of sft", "moved": moved(want, plain),
                "unmerged": differences(want, got)}


TRAINED = [("gpt2", GPT2, ["4"]), ("llama", LLAMA, ["4,8", "--lora-targets", "q_proj,v_proj"]),
           ("qwen3", QWEN3, ["8,16,0.1"])]


def one(job):
    import torch
    torch.set_num_threads(1)
    what, case = job
    try:
        return what.__name__, what(case)
    except Exception as e:  # the table should say which
        return what.__name__, {"model": str(case[:2])[:60], "error": f"{type(e).__name__}: {e}"[:400]}


def good(row):
    return "error" not in row and row["moved"] > 0.01 and all(
        r["logits_max_error"] <= TOLERANCE and r["greedy_equal"]
        for r in (row.get("unmerged"), row.get("merged")) if r)


def main():
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    by = f"peft {peft.__version__}" if peft else "its formula in torch (peft is not installed)"
    jobs = [(read, m) for m in CASES]
    has_sft = subprocess.run([HEARTH, "sft", "--help"], capture_output=True, text=True)
    if has_sft.returncode == 0 and "--lora" in has_sft.stdout:
        jobs += [(trained, m) for m in TRAINED]
    else:
        print("this binary has no sft --lora: adapters written by hearth are not compared")
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        rows = pool.map(one, jobs, chunksize=1)
    report = {"transformers": transformers.__version__, "torch": torch.__version__, "oracle": by,
              "tolerance": TOLERANCE, "greedy_tokens": GREEDY, "models": len(rows),
              "passed": sum(good(r) for _, r in rows), "rows": [r for _, r in rows]}
    with open(OUT, "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    print("oracle:", by)
    for _, r in rows:
        print("ok  " if good(r) else "FAIL", json.dumps(r))
    print(f"{report['passed']} of {report['models']}")
    sys.exit(0 if report["passed"] == report["models"] else 1)


if __name__ == "__main__":
    main()
