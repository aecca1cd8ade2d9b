"""GPT-2 and Llama-2 as plain PyTorch functions of the library's parameters, in its order.

Used by tests/test_torch_models.py and bench/torch_gpt.py."""
import functools
import math

import torch
import torch.nn.functional as F


@functools.lru_cache(maxsize=None)
def mask(t):
    return torch.ones(t, t).triu(1).bool()


@functools.lru_cache(maxsize=None)
def angles(t, d, theta):
    angle = torch.outer(torch.arange(t).double(), theta ** (-torch.arange(0, d, 2).double() / d))
    angle = torch.cat((angle, angle), dim=1)
    return angle.cos().float(), angle.sin().float()


def rope(x, theta=10000.0):  # (B, heads, T, d)
    d = x.shape[-1]
    cos, sin = angles(x.shape[-2], d, theta)
    return x * cos + torch.cat((-x[..., d // 2:], x[..., :d // 2]), dim=-1) * sin


def attention(qkv, heads, kv_heads, turn=None):
    b, t, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (heads + 2 * kv_heads)
    q, k, v = (x.view(b, t, -1, d).transpose(1, 2)
               for x in qkv.split([heads * d, kv_heads * d, kv_heads * d], dim=2))
    if turn:
        q, k = turn(q), turn(k)
    if kv_heads < heads:
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    score = (q @ k.transpose(-2, -1) * (1 / math.sqrt(d))).masked_fill(mask(t), -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, heads * d)


def gpt2(params, tokens, heads, **_):
    p = iter(params)
    table = next(p)
    x = F.embedding(tokens, table) + next(p)[:tokens.shape[1]]

    def norm(x):
        return F.layer_norm(x, x.shape[-1:], next(p), next(p), 1e-5)

    def linear(x):
        return F.linear(x, next(p), next(p))

    for _ in range((len(params) - 4) // 12):
        x = x + linear(attention(linear(norm(x)), heads, heads))
        x = x + linear(F.gelu(linear(norm(x)), approximate="tanh"))
    return F.linear(norm(x), table)


def llama2(params, tokens, heads, kv_heads, tied=False, **_):
    p = iter(params)
    table = next(p)
    x = F.embedding(tokens, table)

    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * next(p)

    def swiglu(x):
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b

    for _ in range((len(params) - 2) // 6):
        y = attention(F.linear(norm(x), next(p)), heads, kv_heads, rope)
        x = x + F.linear(y, next(p))
        x = x + F.linear(swiglu(F.linear(norm(x), next(p))), next(p))
    return F.linear(norm(x), table if tied else next(p))


MODELS = {"gpt2": gpt2, "llama2": llama2}
