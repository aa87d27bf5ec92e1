"""The candidate: the GPT of gpt_torch.py ported to MindSpore, named as MindFormers names its parts.

Each flag plants one difference. Run by an interpreter that has MindSpore; PyNative mode.

python gpt_mindspore.py --save new.ckpt                                  # write what MindSpore draws
python gpt_mindspore.py --weights converted.ckpt                         # train from them
python gpt_mindspore.py --weights converted.ckpt --logits logits.npy
"""

from __future__ import annotations

import argparse
import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental.optim import AdamW
from mindspore.experimental.optim.lr_scheduler import LambdaLR
from text_arrays import VOCABULARY, batches

WIDTH, N_HEADS, N_LAYERS, LENGTH, SIZE = 32, 4, 2, 32, 8
WARM_STEPS, DECAY_STEPS = 5, 60


class Attention(nn.Cell):
    """Three projections; scores and softmax written out."""

    def __init__(self, given):
        super().__init__()
        self.dense1, self.dense2, self.dense3 = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.projection = nn.Dense(WIDTH, WIDTH)
        self.dropout = nn.Dropout(p=given.dropout)
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        n, t, d = x.shape
        q, k, v = (
            dense(x).reshape(n, t, N_HEADS, -1).swapaxes(1, 2) for dense in (self.dense1, self.dense2, self.dense3)
        )
        scores = ops.matmul(q, k.swapaxes(2, 3)) / math.sqrt(d // N_HEADS) + self.mask[:t, :t]
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.dropout(self.projection(y.swapaxes(1, 2).reshape(n, t, d)))


class FeedForward(nn.Cell):
    """The first linear holds its activation, as in MindFormers."""

    def __init__(self, given, is_last):
        super().__init__()
        self.mapping = nn.Dense(WIDTH, 4 * WIDTH, activation=nn.GELU(approximate=given.gelu == "tanh" and is_last))
        self.projection = nn.Dense(4 * WIDTH, WIDTH, has_bias=not (given.no_bias and is_last))
        self.dropout = nn.Dropout(p=given.dropout)

    def construct(self, x):
        return self.dropout(self.projection(self.mapping(x)))


class Block(nn.Cell):
    """Attention and feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, given, is_last):
        super().__init__()
        self.layernorm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.attention = Attention(given)
        self.layernorm2 = nn.LayerNorm((WIDTH,), epsilon=given.eps if is_last else 1e-5)
        self.output = FeedForward(given, is_last)

    def construct(self, x):
        x = x + self.attention(self.layernorm1(x))
        return x + self.output(self.layernorm2(x))


class Embedding(nn.Embedding):
    """Looks up rows of its table in `dtype`."""

    dtype = ms.float32

    def construct(self, ids):
        return ops.gather(self.embedding_table.astype(self.dtype), ids, 0)


class Embeddings(nn.Cell):
    """Of tokens and positions."""

    def __init__(self, given):
        super().__init__()
        self.word_embedding = Embedding(VOCABULARY, WIDTH)
        self.word_embedding.dtype = getattr(ms, given.embedding)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(p=given.dropout)

    def construct(self, ids):
        positions = Tensor(np.arange(ids.shape[1], dtype=np.int32))
        return self.dropout(self.word_embedding(ids) + self.position_embedding(positions))


class Backbone(nn.Cell):
    """All but the head."""

    def __init__(self, given):
        super().__init__()
        self.embedding = Embeddings(given)
        self.blocks = nn.CellList([Block(given, n == N_LAYERS - 1) for n in range(N_LAYERS)])
        self.layernorm = nn.LayerNorm((WIDTH,), epsilon=1e-5)

    def construct(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.layernorm(x)


class GPTLMHeadModel(nn.Cell):
    """Gives logits and loss."""

    def __init__(self, given):
        super().__init__()
        self.backbone = Backbone(given)
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)

    def construct(self, input_ids, labels):
        logits = self.head(self.backbone(input_ids))
        return logits, ops.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def rate(step: int) -> float:
    """Warm-up, then half a cosine down to a tenth."""
    if step < WARM_STEPS:
        return (step + 1) / WARM_STEPS
    return 0.55 + 0.45 * math.cos(math.pi * min((step - WARM_STEPS) / DECAY_STEPS, 1.0))


def groups(net: GPTLMHeadModel, decay: str):
    parameters = net.trainable_params()
    if decay == "all":
        return [{"params": parameters, "weight_decay": 0.1}]
    matrices = [p for p in parameters if p.ndim > 1]
    return [
        {"params": matrices, "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def train(net: GPTLMHeadModel, given: argparse.Namespace) -> None:
    net.set_train()
    optimizer = AdamW(groups(net, given.decay), lr=1e-3, betas=(0.9, given.beta2))
    schedule = LambdaLR(optimizer, rate)

    def forward(ids, labels):
        _, loss = net(ids, labels)
        return loss

    loss_and_gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    data = batches(given.tokens, given.steps, size=SIZE, length=LENGTH, shift=given.label_shift)
    for step, (ids, labels) in enumerate(data):
        loss, gradients = loss_and_gradients(Tensor(ids), Tensor(labels))
        optimizer(ops.clip_by_global_norm(gradients, 1.0))
        schedule.step()
        if step % 10 == 0:
            print(f"step {step} loss {float(loss.asnumpy()):.6f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", default="")
    parser.add_argument("--weights", default="")
    parser.add_argument("--save", default="", help="write the initial weights here and end")
    parser.add_argument("--logits", default="", help="write those of the first batch here and end")
    parser.add_argument("--eps", type=float, default=1e-5, help="of the last block's second norm")
    parser.add_argument("--gelu", choices=("exact", "tanh"), default="exact", help="of the last block")
    parser.add_argument("--fp16", default="", help="cell that computes in float16")
    parser.add_argument("--no-bias", action="store_true", help="of the last block's last linear")
    parser.add_argument("--decay", choices=("matrices", "all"), default="matrices")
    parser.add_argument("--embedding", choices=("float32", "float16"), default="float32", help="lookup format")
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--label-shift", type=int, default=1)
    parser.add_argument("--transposed", action="store_true", help="the last block's attention projection when loaded")
    parser.add_argument("--dropout", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()  # threads that wait for each other make so small a net 50 times slower
    ms.set_seed(0)
    net = GPTLMHeadModel(given)
    for name, cell in net.cells_and_names():
        if given.fp16 and name == given.fp16:
            cell.to_float(ms.float16)
    if given.save:
        ms.save_checkpoint(net, given.save)
        return
    if given.weights:
        kind = "safetensors" if given.weights.endswith(".safetensors") else "ckpt"
        ms.load_param_into_net(net, ms.load_checkpoint(given.weights, format=kind), strict_load=False)
    if given.transposed:
        weight = net.backbone.blocks[-1].attention.projection.weight
        weight.set_data(Tensor(weight.asnumpy().T.copy()))
    if given.logits:
        ids, labels = next(batches(given.tokens, 1, size=SIZE, length=LENGTH))
        np.save(given.logits, net(Tensor(ids), Tensor(labels))[0].asnumpy())
        return
    train(net, given)


if __name__ == "__main__":
    main()
