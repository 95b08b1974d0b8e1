"""The comparisons of gguf.sh: HEARTH ORACLE DATA WORK OUT [NAME]. NAME: only models whose name starts so."""
import array
import json
import math
import operator
import pathlib
import random
import struct
import subprocess
import sys

from gguf_models import LLAMA, MODELS, QUANTISED, READ, SMALL, WRITTEN

HEARTH, ORACLE = sys.argv[1:3]
DATA, WORK, OUT = map(pathlib.Path, sys.argv[3:6])
ONLY = sys.argv[6] if len(sys.argv) > 6 else ""
GREEDY, WINDOW = 64, 64
VARIED = 6  # different tokens among the greedy ones of a random model, at least
# Largest difference of a logit. ggml looks up GELU in a table of f16 on a CPU.
TOLERANCE, GELU_TOLERANCE = 5e-4, 1e-2
GELU = ("gpt2", "gptneox", "gemma", "gemma2", "gemma3")


def run(*args, stdin=None):
    r = subprocess.run(list(map(str, args)), input=stdin, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{args[0]} {args[1]}: {r.stderr.strip()[-400:]}")
    return r.stdout


def hearth(*args, **k):
    return run(HEARTH, *args, **k)


def floats(raw, kind="f"):
    values = array.array(kind)
    values.frombytes(raw)
    return values


def parse(raw):  # of a safetensors file: the table, and where the data begin
    n = struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8:8 + n])
    return {k: t for k, t in table.items() if k != "__metadata__"}, 8 + n


def tensors(path):
    raw = path.read_bytes()
    table, start = parse(raw)
    found = {}
    for name, t in table.items():
        a, b = t["data_offsets"]
        kind = {"I32": "i", "F64": "d"}.get(t["dtype"], "f")
        found[name] = t["shape"], floats(raw[start + a:start + b], kind)
    return found


def difference(a, b):  # the largest, or infinity if the sizes differ
    return max(map(abs, map(operator.sub, a, b)), default=0) if len(a) == len(b) else math.inf


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


def architecture(path):
    raw = path.read_bytes()[:200]
    at = raw.index(b"general.architecture") + 24  # after the number of its type
    n = struct.unpack("<Q", raw[at:at + 8])[0]
    return raw[at + 8:at + 8 + n].decode()


def gap(model, ids, a, b):  # by how much hearth prefers one token to another
    (n, V), x = ask(model, [ids])["logits.0"]
    return x[(n - 1) * V + a] - x[(n - 1) * V + b]


def same_tokens(name, model, prompts):
    """Greedy tokens and logits of the F32 file: hearth's model, llama.cpp, and hearth's reading of the file."""
    f32, out = WORK / "f32.gguf", WORK / "logits.bin"
    hearth("convert", "--from", model, "--gguf", f32, "--dtype", "fp32", "--force")
    kind = architecture(f32)
    row = {"model": name, "architecture": kind, "greedy_equal": True}
    table = ask(model, prompts, GREEDY)
    lines = [p + list(table[f"greedy.{i}"][1]) for i, p in enumerate(prompts)]
    for p, line in zip(prompts, lines):
        said = run(ORACLE, "greedy", f32, GREEDY, stdin=" ".join(map(str, p))).split()
        same = [a == int(b) for a, b in zip(line[len(p):], said)]
        if not all(same):
            at = same.index(False)
            by = gap(model, line[:len(p) + at], line[len(p) + at], int(said[at]))
            row.update(greedy_equal=False, greedy_same_until=at, greedy_gap=max(by, row.get("greedy_gap", 0)))
    row["different_tokens"] = len({t for p, line in zip(prompts, lines) for t in line[len(p):]})
    ours, back, theirs = ask(model, lines), ask(f32, lines), array.array("f")
    for line in lines:
        run(ORACLE, "logits", f32, out, stdin=" ".join(map(str, line)))
        theirs.frombytes(out.read_bytes())
    joined = [sum((t[f"logits.{i}"][1] for i in range(len(lines))), array.array("f")) for t in (ours, back)]
    row["logits_max_difference"] = difference(joined[0], theirs)
    row["read_back_max_difference"] = difference(*joined)
    most = GELU_TOLERANCE if kind in GELU else TOLERANCE
    # Tokens whose logits are closer than the error of GELU may come in either order.
    same = row["greedy_equal"] or (kind in GELU and row["greedy_gap"] < row["logits_max_difference"])
    row["ok"] = same and row["logits_max_difference"] < most and row["read_back_max_difference"] < 1e-4
    return row


def perplexities(row, model, ids):
    """The perplexity of each type in both programs."""
    base = math.exp(nll(model, ids))
    row["perplexity"] = {"hearth fp32": base}
    text = " ".join(map(str, ids))
    for dtype in ("fp32", "fp16", "bf16", *WRITTEN):
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
    row["ok"] = row["ok"] and q8["relative"] < 0.01 and q8["to_fp32"] < 0.01


def shard(path, vocab, count=20000):
    tokens = [int(vocab * random.random() ** 3) for _ in range(count)]  # some likelier than others
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) +
                     struct.pack(f"<{count}H", *tokens))
    return tokens


def train(folder, vocab, flags, steps):
    run("rm", "-rf", folder)
    tokens = shard(WORK / "data.bin", vocab)
    hearth("pretrain", *flags, "--vocab", vocab, "--data", WORK / "data.bin", "--val",
           WORK / "data.bin", "--run", folder, "--steps", steps, "--batch", 4, "--seq", 64,
           "--lr", 3e-3, "--eval-tokens", 1024, "--device", "cpu", "--dtype", "fp32")
    return tokens


def shake(folder):  # adds noise to gains and biases, which start as ones and zeros
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    table, start = parse(raw)
    for t in table.values():
        if len(t["shape"]) == 1:
            a, b = (start + x for x in t["data_offsets"])
            kind = "d" if t["dtype"] == "F64" else "f"
            values = floats(raw[a:b], kind)
            if any(values):  # else the model has no such bias
                raw[a:b] = array.array(kind, (v + random.gauss(0, 0.2) for v in values)).tobytes()
    path.write_bytes(raw)


def random_model(vocab, flags):
    """A Hugging Face folder, and tokens."""
    made, folder = WORK / "run", WORK / "folder"
    tokens = train(made, vocab, flags, 1)
    run("rm", "-rf", folder)
    hearth("convert", "--from", made, "--to", folder)
    shake(folder)
    return folder, tokens


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


def unpacked(file):
    """The largest difference of a weight, as hearth and as ggml unpack a file."""
    plain, folders = WORK / "plain.gguf", [WORK / "ours", WORK / "theirs"]
    run(ORACLE, "plain", file, plain)
    for source, folder in zip((file, plain), folders):
        run("rm", "-rf", folder)
        hearth("convert", "--from", source, "--to", folder, "--dtype", "fp32")
    ours, theirs = (tensors(folder / "model.safetensors") for folder in folders)
    if ours.keys() != theirs.keys():
        return math.inf
    return max(difference(ours[k][1], theirs[k][1]) for k in ours)


def quantised():
    """Files in each type that ggml quantises or that hearth does: both unpack the same floats."""
    rows = []
    for name, flags in QUANTISED:
        model, _ = random_model(257, flags)
        f32, file = WORK / "f32.gguf", WORK / "packed.gguf"
        hearth("convert", "--from", model, "--gguf", f32, "--dtype", "fp32", "--force")
        for by, kind in [("ggml", t) for t in READ] + [("hearth", t) for t in WRITTEN]:
            if by == "ggml":
                run(ORACLE, "quantise", f32, kind, file)
            else:
                hearth("convert", "--from", model, "--gguf", file, "--dtype", kind, "--force")
            worst = unpacked(file)
            share = file.stat().st_size / f32.stat().st_size  # that most of it is quantised
            rows.append({"model": name, "type": kind, "by": by, "max_difference": worst,
                         "ok": worst <= 1e-3 and share < 0.5})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def trained(rows, words):
    """Models with a tokenizer, or trained for some steps, in every type of GGUF that hearth writes."""
    stories = DATA / "models/stories260K/stories260K.bin"
    if stories.exists():  # not among the test data of the project
        story = list(ask(stories, [[1]], 400)["greedy.0"][1])
        rows.append(same_tokens("stories260K", stories, [[1, 403, 407, 261, 378]]))
        perplexities(rows[-1], stories, [1] + story)
        tokenizers(words, "llama2.c (stories260K)", stories)
    gpt2 = ["--preset", "gpt2", *SMALL, "--init-std", 0.08]
    vocabulary = ["--tokenizer", DATA / "tokenizers/gpt2/vocab.bpe"]
    for name, vocab, flags in [("gpt2, 20 steps", 50257, [*gpt2, *vocabulary]),
                               ("llama, 20 steps", 257, [*LLAMA, "--dim", 256, "--init-std", 0.04])]:
        tokens = train(WORK / "run", vocab, flags, 20)
        rows.append(same_tokens(name, WORK / "run", [tokens[:9]]))
        perplexities(rows[-1], WORK / "run", tokens[:129])
        print(json.dumps(rows[-1]), flush=True)
        if vocabulary[0] in flags:
            tokenizers(words, "gpt2", WORK / "run")


def varied(name, kind, vocab, flags):
    """Compares random models until both programs differ, or agree on tokens that vary."""
    for seed in range(1, 9):
        random.seed(f"{name} {seed}")
        model, tokens = random_model(vocab, [*flags, "--seed", seed])
        row = same_tokens(name, model, [tokens[:9], tokens[9:34], tokens[34:74]])
        row["ok"] &= row["architecture"] == kind
        if not row["ok"] or row["different_tokens"] >= VARIED:
            return row
    return {**row, "ok": False}


def main():
    random.seed(1)
    rows, words, packed = [], [], []
    for name, kind, vocab, flags in MODELS:
        if not name.startswith(ONLY):
            continue
        try:
            rows.append(varied(name, kind, vocab, flags))
        except RuntimeError as e:  # one of the programs refuses the model
            rows.append({"model": name, "architecture": kind, "error": str(e), "ok": False})
        print(json.dumps(rows[-1]), flush=True)
    if not ONLY:
        trained(rows, words)
        packed = quantised()
    for w in words:
        print(json.dumps(w))
    every = rows + words + packed
    report = {"greedy_tokens": GREEDY, "passed": sum(r["ok"] for r in every), "of": len(every),
              "models": rows, "tokenizers": words, "quantised": packed}
    OUT.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['passed']} of {report['of']}")
    sys.exit(0 if report["passed"] == report["of"] else 1)


main()
