# Compares hearth's GRPO losses, gradients and advantages with PyTorch's expressions of the formulas
# in TRL's words (double precision, autograd).
#   HEARTH_GRPO_CASES=cases.json build/tests/hearth_unit --gtest_filter=GrpoLoss.WritesItsCases*
#   python3 tests/parity/grpo_losses.py cases.json      # prints one JSON line, exit 1 beyond 1e-9
import json
import sys

import torch


def loss_of(c):
    lengths = c["lengths"]
    B, T = len(lengths), max(lengths)
    mask = torch.zeros(B, T, dtype=torch.float64)
    pad = lambda flat: torch.nn.utils.rnn.pad_sequence(
        list(torch.tensor(flat, dtype=torch.float64).split(lengths)), batch_first=True)
    for i, n in enumerate(lengths):
        mask[i, :n] = 1
    now = pad(c["now"]).requires_grad_()
    old, ref = pad(c["old"]), pad(c["reference"])
    A = torch.tensor(c["advantages"], dtype=torch.float64).unsqueeze(1)
    log_ratio = now - old
    if c["ratio"] == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    coef_1 = torch.exp(log_ratio)
    coef_2 = torch.clamp(coef_1, 1 - c["epsilon"], 1 + c["epsilon_high"])
    per_token = -torch.min(coef_1 * A, coef_2 * A)
    if c["weights"]:
        per_token = per_token * pad(c["weights"])
    d = ref - now
    kl = {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - d - 1}[c["kl_form"]]
    if c["beta"] != 0:
        per_token = per_token + c["beta"] * kl
    per_token = per_token * mask
    if c["reduction"] == "grpo":
        loss = (per_token.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    elif c["reduction"] == "bnpo":
        loss = per_token.sum() / mask.sum().clamp(min=1.0)
    elif c["reduction"] == "dr_grpo":
        loss = per_token.sum() / (B * c["max_completion"])
    else:
        loss = per_token.sum() / c["generation_tokens"]
    loss.backward()
    grad = torch.cat([now.grad[i, :n] for i, n in enumerate(lengths)])
    return loss.item(), grad


def advantages_of(c):
    r = torch.tensor(c["rewards"], dtype=torch.float64).view(-1, c["group"])
    if c["baseline"] == "mean":
        base = r.mean(dim=1, keepdim=True)
    elif c["baseline"] == "median":
        base = r.quantile(0.5, dim=1, keepdim=True)
    elif c["baseline"] == "ema":
        base = torch.full_like(r[:, :1], c["ema"])
    else:
        base = (r.sum(dim=1, keepdim=True) - r) / (c["group"] - 1)
    std = {"group": r.std(dim=1, keepdim=True), "batch": r.std(), "none": None}[c["scale"]]
    a = r - base
    if std is not None:
        a = a / (std + 1e-4)
    equal = (r.amax(1) == r.amin(1)).unsqueeze(1)
    return torch.where(equal, torch.zeros_like(a), a).flatten()


cases = json.load(open(sys.argv[1]))
assert cases["losses"] and cases["advantages"], f"no cases in {sys.argv[1]}"
worst = {"loss": 0.0, "gradient": 0.0, "advantage": 0.0}


def keep(name, error):
    assert error == error, f"{name}: not a number"
    worst[name] = max(worst[name], error)


for c in cases["losses"]:
    loss, grad = loss_of(c)
    keep("loss", abs(loss - c["loss"]))
    ours = torch.tensor(c["dnow"], dtype=torch.float64)
    keep("gradient", (grad - ours).abs().max().item())
for c in cases["advantages"]:
    ours = torch.tensor(c["values"], dtype=torch.float64)
    keep("advantage", (advantages_of(c) - ours).abs().max().item())
good = all(x < 1e-9 for x in worst.values())
print(json.dumps({"torch": torch.__version__, "loss_cases": len(cases["losses"]),
                  "advantage_cases": len(cases["advantages"]), "worst": worst, "pass": good}))
sys.exit(0 if good else 1)
