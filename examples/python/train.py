"""Trains a small GPT on text with a plain PyTorch loop and optimizer, and three calls of dreamddp. Run it under ddprun or torchrun:
    pip install ./python
    python3 -m dreamddp run -n 4 --net 100mbit,5ms python3 examples/python/train.py [STEPS]
The text is $DDP_DATA/tinyshakespeare/input.txt, or dreamddp.h if that file is missing."""
import os
import sys

import dreamddp
import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, DIM, SEQ, BATCH = 4, 4, 128, 64, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)) * (DIM // HEADS) ** -0.5
        a = a.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, DIM), nn.Embedding(SEQ, DIM)
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(DIM)
        for e in (self.tokens, self.places): nn.init.normal_(e.weight, std=0.02)

    def forward(self, x):
        h = self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        return self.norm(h) @ self.tokens.weight.t()  # tied


dreamddp.init()                                                            # 1: rank and world size
paths = [os.path.join(os.environ.get("DDP_DATA", "data"), "tinyshakespeare", "input.txt"), sys.path[0] + "/../../dreamddp.h"]
text = torch.frombuffer(bytearray(open(next(filter(os.path.exists, paths)), "rb").read()), dtype=torch.uint8).long()
torch.manual_seed(dreamddp.rank())
model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, opt = dreamddp.wrap(model, opt)                                     # 2: all ranks start with rank 0's parameters
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
    at = torch.randint(len(text) - SEQ - 1, (BATCH,))
    x = torch.stack([text[i:i + SEQ + 1] for i in at])
    loss = F.cross_entropy(model(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if dreamddp.rank() == 0 and (step + 1) % 10 == 0:
        print("step %4d  loss %.4f" % (step + 1, loss.item()), flush=True)
dreamddp.sync_all()                                                        # 3: afterwards all ranks have equal parameters
