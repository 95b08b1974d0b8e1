"""The comparisons of gguf.sh: HEARTH ORACLE DATA WORK OUT."""
import json
import math
import pathlib
import random
import struct
import subprocess
import sys

HEARTH, ORACLE = sys.argv[1:3]
DATA, WORK, OUT = map(pathlib.Path, sys.argv[3:6])
GREEDY, WINDOW = 64, 64


def run(*args, stdin=None):
    r = subprocess.run(list(map(str, args)), input=stdin, capture_output=True, text=True)
    if r.returncode:
        raise SystemExit(f"{args[:3]}: {r.stderr.strip()[-400:]}")
    return r.stdout


def hearth(*args, **k):
    return run(HEARTH, *args, **k)


def tensors(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    table = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            kind = "i" if t["dtype"] == "I32" else "f"
            table[name] = (t["shape"], struct.unpack(f"<{(b - a) // 4}{kind}",
                                                     raw[8 + n + a:8 + n + b]))
    return table


def ask(model, lines, greedy=0):
    ids, out = WORK / "ids.txt", WORK / "logits.safetensors"
    ids.write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
    hearth("eval", "--model", model, "--task", "logits", "--data", ids, "--out", out, "--greedy",
           greedy, "--device", "cpu", "--dtype", "fp32")
    return tensors(out)


def nll(model, ids):  # in windows of WINDOW inputs, each predicting what follows it
    starts = range(0, len(ids) - 1, WINDOW)
    table = ask(model, [ids[s:min(s + WINDOW, len(ids) - 1)] for s in starts])
    total = 0
    for i, s in enumerate(starts):
        (n, V), x = table[f"logits.{i}"]
        for r in range(n):
            row = x[r * V:(r + 1) * V]
            most = max(row)
            total += most + math.log(sum(math.exp(v - most) for v in row)) - row[ids[s + r + 1]]
    return total / (len(ids) - 1)


def compare(name, model, prompt, ids):
    """F32 greedy tokens, then the perplexity of each type in both programs."""
    row = {"model": name}
    f32 = WORK / "f32.gguf"
    hearth("convert", "--from", model, "--gguf", f32, "--dtype", "fp32", "--force")
    ours = list(ask(model, [prompt], GREEDY)["greedy.0"][1])
    line = " ".join(map(str, prompt))
    theirs = list(map(int, run(ORACLE, "greedy", f32, GREEDY, stdin=line).split()))
    row["greedy_equal"] = ours == theirs
    if ours != theirs:
        row["greedy_same_until"] = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
    base = math.exp(nll(model, ids))
    row["perplexity"] = {"hearth fp32": base}
    text = " ".join(map(str, ids))
    for dtype in ("fp32", "fp16", "bf16", "q8_0", "q4_0"):
        file, back = WORK / f"{dtype}.gguf", WORK / f"back-{dtype}"
        hearth("convert", "--from", model, "--gguf", file, "--dtype", dtype, "--force")
        hearth("convert", "--from", file, "--to", back)  # dequantised
        theirs = math.exp(float(run(ORACLE, "nll", file, WINDOW, stdin=text)))
        ours = math.exp(nll(back, ids))
        run("rm", "-rf", back)
        row["perplexity"][dtype] = {"hearth": ours, "llama.cpp": theirs,
                                    "relative": abs(theirs / ours - 1),
                                    "to_fp32": abs(theirs / base - 1)}
    q8 = row["perplexity"]["q8_0"]
    row["ok"] = row["greedy_equal"] and q8["relative"] < 0.01 and q8["to_fp32"] < 0.01
    return row


def shard(path, vocab, count=20000):
    tokens = [int(vocab * random.random() ** 3) for _ in range(count)]  # some likelier than others
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) +
                     struct.pack(f"<{count}H", *tokens))
    return tokens


SMALL = ["--layers", 2, "--dim", 64, "--heads", 4, "--context", 160, "--kv-heads", 0,
         "--head-dim", 0, "--hidden", 0, "--init-std", 0.08]
MODERN = ["--preset", "modern-124m", *SMALL, "--kv-heads", 2]
LLAMA = [*MODERN, "--qk-norm", "none"]
LATENT = ["--preset", "mla-124m", *SMALL, "--kv-latent", 24, "--nope-dim", 16, "--rope-dim", 8,
          "--v-head-dim", 12]
MODELS = [
    ("gpt2", 257, ["--preset", "gpt2", *SMALL]),
    ("gpt2 vocabulary of GPT-2", 50257, ["--preset", "gpt2", *SMALL]),
    ("llama", 257, LLAMA),
    ("llama untied, head 80, theta 5e5, llama3 scaling", 257,
     [*LLAMA, "--no-tied", "--head-dim", 80, "--rope-theta", 500000, "--rope-scaling", "llama3",
      "--rope-factor", 8, "--rope-context", 64]),
    ("llama interleaved, out bias", 257, ["--preset", "llama3-16k", *SMALL]),
    ("llama biases, linear scaling", 257,
     [*LLAMA, "--qkv-bias", "--out-bias", "--mlp-bias", "--rope-scaling", "linear", "--rope-factor",
      2]),
    ("qwen3", 257, MODERN),
    ("qwen3 head 80, yarn", 257,
     [*MODERN, "--head-dim", 80, "--rope-scaling", "yarn", "--rope-factor", 4, "--rope-context", 64,
      "--rope-low", 1, "--rope-high", 32]),
    ("mixtral", 257, [*LLAMA, "--experts", 4, "--top-k", 2, "--expert-hidden", 64]),
    ("qwen3moe", 257, [*MODERN, "--experts", 8, "--top-k", 3, "--expert-hidden", 32]),
    ("deepseek2 groups, halves", 257,
     [*LATENT, "--q-latent", 16, "--experts", 8, "--top-k", 2, "--expert-hidden", 32,
      "--shared-experts", 1, "--first-dense-layers", 1, "--router", "sigmoid", "--router-bias",
      "--router-scale", 2.5, "--expert-groups", 4, "--top-groups", 2]),
    ("deepseek2 dense, yarn", 257,
     [*LATENT, "--rope-pairs", "interleaved", "--rope-scaling", "yarn", "--rope-factor", 4,
      "--rope-context", 64, "--rope-low", 1, "--rope-high", 32, "--yarn-mscale", 0.707,
      "--yarn-mscale-all", 0.707]),
]


def tokenizers(rows, name, model):
    """The tokenizer in the file gives llama.cpp our ids."""
    text = ("Once upon a time, there was a tiny café in the 1990s; it'll cost $12,345.67!\n\n"
            "\tTabs and  double spaces, don't they?   \nНедостаток света — 日本語のテキスト 🙂 end.")
    file = WORK / "t.gguf"
    hearth("convert", "--from", model, "--gguf", file, "--dtype", "fp32", "--force")
    ours = hearth("tokenizer", "encode", "--tokenizer", file, "--raw", stdin=text).split()
    theirs = run(ORACLE, "tokenize", file, stdin=text).split()
    rows.append({"tokenizer": name, "ids": len(ours), "ok": ours == theirs and len(ours) > 50})
    if ours != theirs:
        rows[-1].update(ours=ours, theirs=theirs)


def main():
    random.seed(1)
    rows, words = [], []
    stories = DATA / "models/stories260K/stories260K.bin"
    if stories.exists():  # not among the test data of the project
        story = list(ask(stories, [[1]], 400)["greedy.0"][1])
        rows.append(compare("stories260K", stories, [1, 403, 407, 261, 378], [1] + story))
        tokenizers(words, "llama2.c (stories260K)", stories)
    for name, vocab, flags in MODELS:
        folder = WORK / "run"
        run("rm", "-rf", folder)
        tokens = shard(WORK / "data.bin", vocab)
        extra = ["--tokenizer", DATA / "tokenizers/gpt2/vocab.bpe"] if vocab == 50257 else []
        hearth("pretrain", *flags, "--vocab", vocab, "--data", WORK / "data.bin", "--val",
               WORK / "data.bin", "--run", folder, "--steps", 20, "--batch", 4, "--seq", 64,
               "--lr", 3e-3, "--eval-tokens", 1024, "--device", "cpu", "--dtype", "fp32", *extra)
        rows.append(compare(name, folder, tokens[:9], tokens[:129]))
        if extra:
            tokenizers(words, "gpt2", folder)
        print(json.dumps(rows[-1]), flush=True)
    for w in words:
        print(json.dumps(w))
    report = {"greedy_tokens": GREEDY, "passed": sum(r["ok"] for r in rows + words),
              "of": len(rows + words), "models": rows, "tokenizers": words}
    OUT.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['passed']} of {report['of']}")
    sys.exit(0 if report["passed"] == report["of"] else 1)


main()
