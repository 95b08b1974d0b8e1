#!/usr/bin/env python3
"""Trains the NoCap baseline in PyTorch from the weights that hearth begins with, on the same tokens.

  hearth doctor gradients --preset nocap-d12 --dtype fp32 --batch 1 --seq 8 --seed 1 --out start.safetensors
  python3 tests/parity/nocap_curve.py start.safetensors MIX [--steps 500] [--label seed1]

MIX holds mix_train_*.bin and mix_val_*.bin. The recipe is scripts/gpu's nocap stage: 131,072 tokens a step, lr 0.0018,
warmup 50, warmdown over the last 150 steps, AdamW (0.9, 0.95) with decay 0.1 on everything, no clipping. One JSON line for
every 50 steps. Curves of one seed in both engines differ by rounding alone; curves of two seeds by their draws.
"""
import argparse, glob, json, math, time
import numpy, torch, torch.nn.functional as F
from safetensors.torch import load_file

args = argparse.ArgumentParser()
args.add_argument("weights")
args.add_argument("mix")
args.add_argument("--steps", type=int, default=500)
args.add_argument("--label", default="")
args = args.parse_args()
BATCH, LENGTH, MICRO, WARMUP, WARMDOWN, RATE = 64, 1024, 2, 50, 150, 0.0018


def tokens_of(pattern):
    (name,) = sorted(glob.glob(f"{args.mix}/{pattern}"))[:1]
    data = numpy.fromfile(name, dtype=numpy.uint16)[512:]  # after the header
    return torch.from_numpy(data.astype(numpy.int32)).cuda()


class Batches:
    """Windows in the order of the file; from its start again when the next batch does not fit."""

    def __init__(self, tokens):
        self.tokens, self.at = tokens, 0

    def next(self):
        count = BATCH * LENGTH
        if self.at + count + 1 > len(self.tokens):
            self.at = 0
        window = self.tokens[self.at : self.at + count + 1].long()
        self.at += count
        return window[:-1].view(BATCH, LENGTH), window[1:].view(BATCH, LENGTH)


weights = {k[7:]: v.cuda().requires_grad_() for k, v in load_file(args.weights).items() if k.startswith("weight/")}
layers = 1 + max(int(k.split(".")[1]) for k in weights if k.startswith("blocks."))
width = weights["embed.weight"].shape[1]
heads = width // 64
angles = torch.outer(torch.arange(LENGTH).float(), 10000.0 ** (-torch.arange(0, 64, 2).float() / 64)).cuda()
cos, sin = angles.cos()[None, None], angles.sin()[None, None]


def rms(x):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).type_as(x)


def turn(x):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), -1).type_as(x)


def loss_of(w, x, y):
    x = F.embedding(x, w["embed.weight"])
    for i in range(layers):
        p = f"blocks.{i}."
        q, k, v = F.linear(rms(x), w[p + "attn.qkv.weight"]).split(width, -1)
        q, k, v = (t.view(BATCH, LENGTH, heads, 64).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        a = a.transpose(1, 2).reshape(BATCH, LENGTH, width)
        x = x + F.linear(a, w[p + "attn.out.weight"]) / math.sqrt(2 * layers)
        x = x + F.linear(F.gelu(F.linear(rms(x), w[p + "mlp.up.weight"])), w[p + "mlp.down.weight"])
    logits = F.linear(rms(x), w["embed.weight"])
    return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def rate(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * min(1.0, (args.steps - step) / WARMDOWN)


torch.set_float32_matmul_precision("high")
compiled = torch.compile(loss_of)
optimizer = torch.optim.AdamW(weights.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
train, validation = Batches(tokens_of("mix_train_*.bin")), tokens_of("mix_val_*.bin")
began = time.time()
for step in range(args.steps + 1):
    if step % 50 == 0:
        held, total, count = Batches(validation), 0.0, 1048576 // (BATCH * LENGTH)
        for _ in range(count):
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                total += float(compiled(weights, *held.next()))
        line = {"bench": "nocap", "engine": "PyTorch " + torch.__version__, "from": args.label, "step": step}
        print(json.dumps(line | {"val_loss": round(total / count, 4), "seconds": round(time.time() - began)}), flush=True)
    if step == args.steps:
        break
    for _ in range(MICRO):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(weights, *train.next()) / MICRO
        loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step < 11:
        print(f"step {step} loss {float(loss) * MICRO:.4f} (of its last {BATCH} sequences)", flush=True)
