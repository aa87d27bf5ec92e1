"""A GPT-2 of MindSpore's own cells; run by an interpreter that has MindSpore.

python mindspore_gpt.py init NEW.ckpt                # save what MindSpore draws
python mindspore_gpt.py logits WEIGHTS.ckpt OUT.npy  # load strictly, run forward
python mindspore_gpt.py load WEIGHTS.ckpt OUT.json   # name -> format, shape, bits of what MindSpore loads
"""

import json
import math
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

VOCABULARY, POSITIONS, SIZE, HEADS, LAYERS = 64, 16, 16, 2, 2
IDS = np.arange(12, dtype=np.int32)[None] * 5 % VOCABULARY


def norm():
    return nn.LayerNorm((SIZE,), epsilon=1e-5)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Dense(SIZE, 3 * SIZE), nn.Dense(SIZE, SIZE)

    def construct(self, x):
        b, s, _ = x.shape
        q, k, v = (part.reshape(b, s, HEADS, -1).swapaxes(1, 2) for part in ops.split(self.c_attn(x), SIZE, -1))
        scores = ops.matmul(q, k.swapaxes(2, 3)) / math.sqrt(SIZE // HEADS)
        scores = scores + Tensor(np.triu(np.full((s, s), -1e9, np.float32), 1))
        return self.c_proj(ops.matmul(ops.softmax(scores, -1), v).swapaxes(1, 2).reshape(b, s, SIZE))


class Mlp(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj, self.act = nn.Dense(SIZE, 4 * SIZE), nn.Dense(4 * SIZE, SIZE), nn.GELU()

    def construct(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = norm(), Attention(), norm(), Mlp()

    def construct(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(POSITIONS, SIZE)
        self.h = nn.CellList([Block() for _ in range(LAYERS)])
        self.ln_f = norm()

    def construct(self, ids):
        x = self.wte(ids) + self.wpe(Tensor(np.arange(ids.shape[1], dtype=np.int32)))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt(nn.Cell):
    """The output layer is the embedding, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.transformer = Transformer()

    def construct(self, ids):
        return ops.matmul(self.transformer(ids), self.transformer.wte.embedding_table.T)


def loaded(path):
    found = {}
    for name, value in ms.load_checkpoint(path).items():
        found[name] = (
            value if isinstance(value, str) else [str(value.dtype), list(value.shape), value.get_bytes().hex()]
        )
    return found


def main():
    task, path = sys.argv[1:3]
    if task == "load":
        Path(sys.argv[3]).write_text(json.dumps(loaded(path)))
        return
    net = Gpt()
    if task == "init":
        ms.save_checkpoint(net, path)
        return
    missing, unused = ms.load_param_into_net(net, ms.load_checkpoint(path), strict_load=True)
    assert (missing, unused) == ([], [])
    np.save(sys.argv[3], net(Tensor(IDS)).asnumpy())


if __name__ == "__main__":
    main()
