#!/usr/bin/env python3
"""Makes models/story and computes what it must say, without hearth's kernels and without numpy.

    hearth data stories --out stories.txt --stories 6000
    story_model.py vocabulary stories.txt story512.bin
    hearth data prepare --tokenizer story512.bin --input stories.txt --out tokens
    hearth pretrain --data 'tokens/*.bin' --run run --vocab 512 --context 256 --layers 3 --dim 48 \\
      --heads 6 --kv-heads 3 --hidden 128 --norm-eps 1e-5 --seq 256 --batch 16 --steps 1500 --lr 4e-3 --warmup 50
    story_model.py convert run/model story.bin     (a folder with config.json and model.safetensors)
    story_model.py tell story.bin story512.bin 40  (greedy from <s>: the ids, then the text)
"""
import json, math, pathlib, struct, sys
from collections import Counter


def vocabulary(text_path, out_path, size=512):
    """llama2.c's tokenizer file: int32 longest; per token float score, int32 length, bytes."""
    text = pathlib.Path(text_path).read_text().replace("<|endoftext|>", " ")
    words = Counter(" " + w for w in text.split())
    letters = [c for c, _ in Counter("".join(w * n for w, n in words.items())).most_common()]
    split = {w: list(w) for w in words}
    merged = []
    while 259 + len(merged) + len(letters) < size:
        pairs = Counter()
        for w, n in words.items():
            for pair in zip(split[w], split[w][1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda p: (pairs[p], p))
        merged.append("".join(best))
        for w, s in split.items():
            i = 0
            while i + 1 < len(s):
                if (s[i], s[i + 1]) == best:
                    s[i:i + 2] = [merged[-1]]
                i += 1
    pieces = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    pieces += [(b"<0x%02X>" % b, 0.0) for b in range(256)]
    pieces += [(p.encode(), -float(i)) for i, p in enumerate(merged + letters)]
    body = b"".join(struct.pack("<fi", score, len(p)) + p for p, score in pieces)
    longest = max(len(p) for p, _ in pieces[259:])
    pathlib.Path(out_path).write_bytes(struct.pack("<i", longest) + body)


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            assert t["dtype"] == "F32", name
            begin, end = t["data_offsets"]
            out[name] = struct.unpack(f"<{(end - begin) // 4}f", raw[8 + n + begin:8 + n + end])
    return out


def bf16(x):
    """Rounded to bf16, still four bytes: half of the file is zeros, which xz drops."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def interleaved(rows, heads, width):
    """Hugging Face turns dims i and i + D/2 of a head together, llama2.c 2i and 2i + 1."""
    D = len(rows) // width // heads
    out = []
    for h in range(heads):
        for j in range(D):
            r = h * D + (j // 2 + (j % 2) * D // 2)
            out += rows[r * width:(r + 1) * width]
    return out


def convert(folder, out_path):
    c = json.loads((pathlib.Path(folder) / "config.json").read_text())
    t = read_safetensors(pathlib.Path(folder) / "model.safetensors")
    C, L, H, G = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"]
    seq, D = c["max_position_embeddings"], C // H
    layer = lambda i, name: list(t[f"model.layers.{i}.{name}.weight"])
    every = lambda name, f=lambda rows: rows: [x for i in range(L) for x in f(layer(i, name))]
    weights = list(t["model.embed_tokens.weight"]) + every("input_layernorm")
    weights += every("self_attn.q_proj", lambda rows: interleaved(rows, H, C))
    weights += every("self_attn.k_proj", lambda rows: interleaved(rows, G, C))
    weights += every("self_attn.v_proj") + every("self_attn.o_proj") + every("post_attention_layernorm")
    weights += every("mlp.gate_proj") + every("mlp.down_proj") + every("mlp.up_proj")
    weights = [bf16(x) for x in weights + list(t["model.norm.weight"])]
    angles = [pos * 10000.0 ** (-2 * i / D) for pos in range(seq) for i in range(D // 2)]
    weights += [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
    header = (C, c["intermediate_size"], L, H, G, c["vocab_size"], seq)
    pathlib.Path(out_path).write_bytes(struct.pack("<7i", *header) + struct.pack(f"<{len(weights)}f", *weights))


class Model:
    """llama2.c's run.c in double precision."""

    def __init__(self, path):
        raw = pathlib.Path(path).read_bytes()
        self.C, self.F, self.L, self.H, self.G, self.V, self.seq = struct.unpack("<7i", raw[:28])
        C, F, L, V, kv = self.C, self.F, self.L, self.V, self.C // self.H * self.G
        rest = struct.unpack(f"<{(len(raw) - 28) // 4}f", raw[28:])
        at = 0
        for name, layers, rows, cols in (("emb", 1, V, C), ("rms_att", L, 1, C), ("wq", L, C, C), ("wk", L, kv, C),
                                         ("wv", L, kv, C), ("wo", L, C, C), ("rms_ffn", L, 1, C), ("w1", L, F, C),
                                         ("w2", L, C, F), ("w3", L, F, C), ("rms_final", 1, 1, C)):
            table = []
            for _ in range(layers):
                table.append([rest[at + r * cols:at + (r + 1) * cols] for r in range(rows)])
                at += rows * cols
            setattr(self, name, table)
        self.keys, self.values = [[] for _ in range(L)], [[] for _ in range(L)]

    def step(self, token, pos):
        product = lambda w, x: [sum(a * b for a, b in zip(row, x)) for row in w]

        def norm(x, gain):
            scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
            return [v * scale * g for v, g in zip(x, gain)]

        def turned(x):
            out = []
            D = self.C // self.H
            for i in range(0, len(x), 2):
                a = pos * 10000.0 ** (-(i % D) / D)
                out += [x[i] * math.cos(a) - x[i + 1] * math.sin(a), x[i] * math.sin(a) + x[i + 1] * math.cos(a)]
            return out

        D, x = self.C // self.H, list(self.emb[0][token])
        for l in range(self.L):
            n = norm(x, self.rms_att[l][0])
            q = turned(product(self.wq[l], n))
            self.keys[l].append(turned(product(self.wk[l], n)))
            self.values[l].append(product(self.wv[l], n))
            y = []
            for h in range(self.H):
                g = h * self.G // self.H * D
                scores = [sum(q[h * D + d] * k[g + d] for d in range(D)) / math.sqrt(D) for k in self.keys[l]]
                p = [math.exp(s - max(scores)) for s in scores]
                y += [sum(a * v[g + d] for a, v in zip(p, self.values[l])) / sum(p) for d in range(D)]
            x = [a + b for a, b in zip(x, product(self.wo[l], y))]
            n = norm(x, self.rms_ffn[l][0])
            hidden = [a / (1 + math.exp(-a)) * b for a, b in zip(product(self.w1[l], n), product(self.w3[l], n))]
            x = [a + b for a, b in zip(x, product(self.w2[l], hidden))]
        return product(self.emb[0], norm(x, self.rms_final[0][0]))


def tell(model_path, vocabulary_path, count):
    model, raw, pieces, at = Model(model_path), pathlib.Path(vocabulary_path).read_bytes(), [], 4
    while at < len(raw):
        _, n = struct.unpack("<fi", raw[at:at + 8])
        pieces.append(raw[at + 8:at + 8 + n])
        at += 8 + n
    ids, gap = [1], math.inf
    while len(ids) < int(count):
        logits = model.step(ids[-1], len(ids) - 1)
        best, second = sorted(logits, reverse=True)[:2]
        gap = min(gap, best - second)
        ids.append(logits.index(best))
    print(ids, f"the closest second was {gap:.3f} behind", b"".join(pieces[i] for i in ids[1:]).decode(), sep="\n")


if __name__ == "__main__":
    {"vocabulary": vocabulary, "convert": convert, "tell": tell}[sys.argv[1]](*sys.argv[2:])
