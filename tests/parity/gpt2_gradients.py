#!/usr/bin/env python3
"""Compares the gradients of one GPT-2 step with PyTorch's in float64.

  hearth doctor gradients --device cuda --preset gpt2 --dtype bf16 --batch 4 --seq 1024 --out step.safetensors
  python3 tests/parity/gpt2_gradients.py step.safetensors [LIMIT]

Prints one JSON line: for every parameter the relative error ||ours - exact|| / ||exact||, beside that of
PyTorch's own bf16 autocast on the same weights. Fails if ours is anywhere more than 1.5 times as large, or
above LIMIT where one is given, as for gradients in fp32.
"""
import json, sys
import torch, torch.nn.functional as F
from safetensors.torch import load_file

file = load_file(sys.argv[1])
weights = {k[7:]: v for k, v in file.items() if k.startswith("weight/")}
ours = {k[5:]: v for k, v in file.items() if k.startswith("grad/")}
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens, targets = (file[k].long().to(device) for k in ("tokens", "targets"))
layers = 1 + max(int(k.split(".")[1]) for k in weights if k.startswith("blocks."))
heads = weights["embed.weight"].shape[1] // 64


def loss_of(w):
    B, T = tokens.shape
    x = F.embedding(tokens, w["embed.weight"]) + w["positions.weight"][:T]
    norm = lambda x, p: F.layer_norm(x, x.shape[-1:], w[p + ".gain"], w[p + ".bias"], 1e-5)
    lin = lambda x, p: F.linear(x, w[p + ".weight"], w[p + ".bias"])
    for i in range(layers):
        b = f"blocks.{i}."
        q, k, v = lin(norm(x, b + "attn.norm"), b + "attn.qkv").split(x.shape[-1], -1)
        q, k, v = (t.view(B, T, heads, -1).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, -1)
        x = x + lin(a, b + "attn.out")
        x = x + lin(F.gelu(lin(norm(x, b + "mlp.norm"), b + "mlp.up"), approximate="tanh"), b + "mlp.down")
    return F.cross_entropy(F.linear(norm(x, "final_norm"), w["embed.weight"]).flatten(0, 1).double(), targets.flatten())


def gradients(dtype, autocast):
    w = {k: v.to(device, dtype).requires_grad_() for k, v in weights.items()}
    with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
        loss = loss_of(w)
    loss.backward()
    return float(loss.detach()), {k: v.grad.double().cpu() for k, v in w.items()}


exact_loss, exact = gradients(torch.float64, False)
torch_loss, theirs = gradients(torch.float32, True)
error = lambda g, k: float((g[k].double() - exact[k]).norm() / exact[k].norm())
rows = {k: (error(ours, k), error(theirs, k)) for k in sorted(exact)}
worst = max(rows, key=lambda k: rows[k][0] / rows[k][1])
line = dict(parity="gpt2 gradients", shape=list(tokens.shape), loss=float(file["loss"][0]), exact_loss=exact_loss,
            torch_bf16_loss=torch_loss, parameters=len(rows), worst=worst, worst_ours=rows[worst][0],
            worst_torch=rows[worst][1], mean_ours=sum(r[0] for r in rows.values()) / len(rows),
            mean_torch=sum(r[1] for r in rows.values()) / len(rows))
print(json.dumps(line))
limit = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
sys.exit(0 if all(o <= min(1.5 * t + 1e-6, limit) for o, t in rows.values()) else 1)
