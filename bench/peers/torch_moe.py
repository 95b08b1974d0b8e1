#!/usr/bin/env python3
"""The products of a layer of experts in PyTorch: torch._grouped_mm on rows sorted by expert.

The peer of `hearth bench moe`: the same shapes, the same random routing, one JSON line per product.
PyTorch has no gather inside the product, so a gathered operand costs an index_select, which is
timed with the product that needs it.

  torch_moe.py --tokens 65536 --dim 768 --hidden 512 --experts 64 --top-k 4
"""
import argparse, json
import torch

p = argparse.ArgumentParser()
p.add_argument("--tokens", type=int, default=65536); p.add_argument("--dim", type=int, default=768)
p.add_argument("--hidden", type=int, default=512); p.add_argument("--experts", type=int, default=64)
p.add_argument("--top-k", type=int, default=4); p.add_argument("--steps", type=int, default=20)
p.add_argument("--no-glu", action="store_true")
a = p.parse_args()

T, C, H, E, R = a.tokens, a.dim, a.hidden, a.experts, a.tokens * a.top_k
W = H if a.no_glu else 2 * H
g = lambda *s: torch.rand(*s, device="cuda", dtype=torch.bfloat16) * 2 - 1
experts = torch.rand(T, E, device="cuda").topk(a.top_k, dim=1).indices.flatten()
order = experts.argsort(stable=True)
gather = (order // a.top_k).to(torch.int32)
ends = torch.bincount(experts, minlength=E).cumsum(0).to(torch.int32)
x, up, h, y, w_up, w_down = g(T, C), g(R, W), g(R, H), g(R, C), g(E, W, C), g(E, C, H)


def product(rows, weights):  # (R, K) x (E, K, N)
    return torch._grouped_mm(rows, weights, offs=ends)


def gradient(dc, rows):  # (R, N), (R, K) -> (E, N, K)
    return torch._grouped_mm(dc.t(), rows, offs=ends)


products = [
    ("up", "forward", W, C, lambda: product(x[gather], w_up.transpose(1, 2))),
    ("down", "forward", C, H, lambda: product(h, w_down.transpose(1, 2))),
    ("down dA", "dA", H, C, lambda: product(x[gather], w_down)),
    ("up dA", "dA", C, W, lambda: product(up, w_up)),
    ("up dW", "dW", W, C, lambda: gradient(up, x[gather])),
    ("down dW", "dW", C, H, lambda: gradient(y, h)),
]
sums = {}


def report(name, flops, ms):
    glu = "" if a.no_glu else " GLU"
    print(json.dumps({
        "bench": "moe peer", "device": torch.cuda.get_device_name(), "peer": "torch", "version": torch.__version__,
        "shape": f"{name} {T} tokens, dim {C}, hidden {H}{glu}, {E} experts, top {a.top_k}",
        "value": round(flops / ms / 1e9, 1), "unit": "TFLOP/s", "ms": round(ms, 4)}), flush=True)


for name, kind, n, k, run in products:
    for _ in range(3):
        run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(a.steps):
        run()
    end.record(); end.synchronize()
    ms, flops = begin.elapsed_time(end) / a.steps, 2 * R * n * k
    report(name, flops, ms)
    for s in (kind,) if kind == "forward" else (kind, "backward"):
        f, m = sums.get(s, (0, 0))
        sums[s] = f + flops, m + ms
for s, (flops, ms) in sums.items():
    report("all " + s, flops, ms)
