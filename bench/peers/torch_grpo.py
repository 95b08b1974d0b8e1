#!/usr/bin/env python3
"""The PyTorch peer of `hearth bench grpo`: a GRPO step as a careful user of transformers writes it.

Rollouts by transformers' generate from a bf16 copy of the weights (no autocast in the decoding loop;
the copy's time counts), SDPA, every completion of full length; then one compiled training step over
the same tokens: log-probabilities of the completions, the clipped loss, backward, fused AdamW. Random
weights of GPT-2's shape, random prompts. Prints a JSON line, and with --static another for generate
over a compiled static cache. It is the yardstick of the same run on the same GPU, not part of the
product.

  torch_grpo.py --prompts 64 --group 8 --completion 128 --prompt-tokens 64
  torch_grpo.py --device cpu --layers 2 --dim 64 --heads 2 --prompts 2 --group 2 --completion 8 --repeats 1
"""
import argparse, copy, json, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel

p = argparse.ArgumentParser()
for name, value in (("prompts", 64), ("group", 8), ("completion", 128), ("prompt-tokens", 64), ("layers", 12),
                    ("dim", 768), ("heads", 12), ("vocab", 50257), ("micro", 128), ("warmup", 2), ("repeats", 3),
                    ("budget", 80)):
    p.add_argument("--" + name, type=int, default=value)
p.add_argument("--device", default="cuda")
p.add_argument("--static", action="store_true", help="then also generate with a compiled static cache")
a = p.parse_args()
started = time.perf_counter()

torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
config = GPT2Config(vocab_size=a.vocab, n_layer=a.layers, n_embd=a.dim, n_head=a.heads,
                    n_positions=max(1024, a.prompt_tokens + a.completion),
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")
model = GPT2LMHeadModel(config).to(a.device)
fused = a.device == "cuda"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.999), weight_decay=0.0, fused=fused)


def synchronize():
    if a.device == "cuda":
        torch.cuda.synchronize()


sampler = copy.deepcopy(model).to(torch.bfloat16).requires_grad_(False).eval()


@torch.no_grad()
def rollout(prompts, **more):
    torch._foreach_copy_(list(sampler.parameters()), list(model.parameters()))
    ids = prompts.repeat_interleave(a.group, 0)
    out = sampler.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0,
                           max_new_tokens=a.completion, min_new_tokens=a.completion, pad_token_id=0, **more)
    return out.clone()


def micro_loss(ids, old, advantages, tokens):
    with torch.autocast(a.device, dtype=torch.bfloat16):
        hidden = model.transformer(ids[:, :-1], use_cache=False).last_hidden_state[:, a.prompt_tokens - 1:]
        logits = model.lm_head(hidden)
    logits = logits.float()
    now = logits.gather(-1, ids[:, a.prompt_tokens:, None]).squeeze(-1) - logits.logsumexp(-1)
    ratio = torch.exp(now - (now.detach() if old is None else old))
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * advantages, clipped * advantages).sum() / tokens


compiled = torch.compile(micro_loss)


def train(ids, advantages):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    tokens = ids.shape[0] * a.completion
    for i in range(0, ids.shape[0], a.micro):
        compiled(ids[i:i + a.micro], None, advantages[i:i + a.micro], tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def random_prompts():
    return torch.randint(0, a.vocab, (a.prompts, a.prompt_tokens), device=a.device)


def timed(f, *args, **more):
    synchronize()
    begin = time.perf_counter()
    result = f(*args, **more)
    synchronize()
    return result, time.perf_counter() - begin


def late():  # past the time budget: report what has been measured
    return time.perf_counter() - started > a.budget


def report(rollout_s, train_s, cache, steps):
    made, total = a.prompts * a.group * a.completion, rollout_s + train_s
    print(json.dumps({
        "bench": "grpo peer", "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu",
        "shape": f"gpt2 bf16 {a.prompts} prompts of {a.prompt_tokens} x {a.group} x {a.completion}",
        "value": made / total, "unit": "completion tokens/s", "rollout_tokens_per_s": made / rollout_s,
        "train_tokens_per_s": a.prompts * a.group * (a.prompt_tokens + a.completion - 1) / train_s,
        "step_ms": 1e3 * total, "rollout_ms": 1e3 * rollout_s, "train_ms": 1e3 * train_s,
        "cache": cache, "steps": steps, "torch": torch.__version__,
        "memory_bytes": torch.cuda.max_memory_allocated() if a.device == "cuda" else 0}), flush=True)


times = []
for step in range(a.warmup + a.repeats):
    ids, rollout_s = timed(rollout, random_prompts())
    rewards = torch.rand(a.prompts, a.group, device=a.device)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    _, train_s = timed(train, ids, advantages)
    if step >= a.warmup:
        times.append((rollout_s + train_s, rollout_s, train_s))
    if times and late():
        break
times.sort()
_, rollout_s, train_s = times[len(times) // 2]
report(rollout_s, train_s, "dynamic", len(times))
if a.static:
    static = []
    for step in range(a.warmup + a.repeats):
        _, s = timed(rollout, random_prompts(), cache_implementation="static")
        if step >= a.warmup:
            static.append(s)
        if static and late():
            break
    report(sorted(static)[len(static) // 2], train_s, "static", len(static))
