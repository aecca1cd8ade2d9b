"""The library's models in PyTorch, with parameters in the library's order: GPT-2 and Llama-2 as plain
functions of the parameters, ResNet-18 for 32 x 32 images as a module.

Used by tests/nn/test_torch_models.py, tests/nn/test_torch_vision.py and bench/torch_*.py."""
import functools
import math

import torch
from torch import nn
import torch.nn.functional as F


SDPA = False  # use PyTorch's fused attention (2.0 or later), which is faster but sums in another order


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
    if SDPA:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, heads * d)
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


def conv(channels_in, channels, kernel, stride):
    return nn.Sequential(nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False),
                         nn.BatchNorm2d(channels))


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.one = conv(channels_in, channels, 3, stride)
        self.short = conv(channels_in, channels, 1, stride) if stride > 1 else nn.Identity()
        self.two = conv(channels, channels, 3, 1)

    def forward(self, x):
        return F.relu(self.two(F.relu(self.one(x))) + self.short(x))


def resnet18():
    blocks, before = [conv(3, 64, 3, 1), nn.ReLU()], 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        blocks += [Block(before, channels, 2 if stage else 1), Block(channels, channels, 1)]
        before = channels
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
