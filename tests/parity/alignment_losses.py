#!/usr/bin/env python3
"""Losses of alignment against PyTorch expressions of the same formulas, with autograd.

    HEARTH_LOSS_DUMP=/tmp/losses.json build/tests/hearth_unit --gtest_filter=DpoLosses.DumpForParity
    python3 tests/parity/alignment_losses.py /tmp/losses.json

Needs torch alone. Prints one line a formula with the largest difference of value and gradient, and
fails where one is above 1e-6 (of kernels in f32: 1e-5) of the largest number.
"""
import json
import sys
from collections import defaultdict

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def dpo(case):
    c = torch.tensor(case["chosen"], requires_grad=True)
    r = torch.tensor(case["rejected"], requires_grad=True)
    beta, e, kind = case["beta"], case["label_smoothing"], case["loss_type"]
    ratio_c = c.sum() - case["reference_chosen"]
    ratio_r = r.sum() - case["reference_rejected"]
    delta = ratio_c - ratio_r
    means = ratio_c / len(c) - ratio_r / len(r)
    loss = {
        "sigmoid": lambda: -F.logsigmoid(beta * delta),
        "hinge": lambda: torch.relu(1 - beta * delta),
        "ipo": lambda: (means - 1 / (2 * beta)) ** 2,
        "cdpo": lambda: -(1 - e) * F.logsigmoid(beta * delta) - e * F.logsigmoid(-beta * delta),
        "robust": lambda: (-(1 - e) * F.logsigmoid(beta * delta) + e * F.logsigmoid(-beta * delta))
        / (1 - 2 * e),
        "sigmoid_norm": lambda: -F.logsigmoid(beta * means),
    }[kind]()
    loss.backward()
    want = [loss.item(), *c.grad.tolist(), *r.grad.tolist(), beta * ratio_c.item(), beta * ratio_r.item()]
    got = [case["loss"], *[case["d_chosen"]] * len(c), *[case["d_rejected"]] * len(r),
           case["reward_chosen"], case["reward_rejected"]]
    return want, got


def logprob(case):
    V = case["vocab"]
    x = torch.tensor(case["logits"]).view(-1, V).requires_grad_()
    z = x
    if case["softcap"] > 0:
        z = case["softcap"] * torch.tanh(z / case["softcap"])
    z = z / case["temperature"]
    log = F.log_softmax(z, -1)
    counts = torch.tensor([t >= 0 for t in case["targets"]])
    index = torch.tensor([max(t, 0) for t in case["targets"]])
    y = torch.where(counts, log.gather(1, index[:, None])[:, 0], 0.0)
    entropy = torch.where(counts, -(log.exp() * log).sum(-1), 0.0)
    (y * torch.tensor(case["d"])).sum().backward()
    want = y.tolist() + entropy.tolist() + x.grad.flatten().tolist()
    return want, case["logprob"] + case["entropy"] + case["dlogits"]


def main():
    cases = json.load(open(sys.argv[1]))
    worst, count = defaultdict(float), defaultdict(int)
    for group, formula in (("dpo", dpo), ("logprob", logprob)):
        assert cases[group], f"no cases of {group} in {sys.argv[1]}"
        for case in cases[group]:
            want, got = formula(case)
            top = max(1.0, max(abs(w) for w in want))
            name = case.get("loss_type") or f"logprob softcap {case['softcap']} temperature {case['temperature']:.2f}"
            errors = [abs(w - g) / top for w, g in zip(want, got, strict=True)]
            assert all(e == e for e in errors), f"{name}: not a number"
            worst[name] = max(worst[name], *errors)
            count[name] += 1
    bad = False
    for name, error in worst.items():
        limit = 1e-5 if name.startswith("logprob") else 1e-6
        bad |= not error <= limit
        print(f"{name}: {count[name]} cases, largest difference {error:.2e} (limit {limit:.0e})")
    print("torch", torch.__version__, "FAILED" if bad else "all within limits")
    sys.exit(bad)


main()
