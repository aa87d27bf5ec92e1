"""Steps of real nets that fail, each with the place and the cause that are to be found."""

import contextlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.investigate import Investigator
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall, random_state


def normal(*shape, scale=1.0, seed=0):
    return Tensor((np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32))


def investigated(net, fn, *args, loss_scale=None, seed_scale=1.0) -> Evidence:
    """The evidence of one step in which `fn(*args)` is differentiated."""
    names = NameMap()
    names.add_root(net)
    weights = tuple(net.trainable_params())
    random = random_state()
    loss, grads = ms.value_and_grad(fn, None, weights)(*args)
    value = float(loss.asnumpy())
    bad = tuple(names.label(w) for w, g in zip(weights, grads, strict=True) if not np.isfinite(g.asnumpy()).all())
    call = GradCall(number=0, batch=0, fn=fn, args=args, weights=weights, random=random, loss=loss, loss_value=value)
    base = Evidence(
        id="step-000003",
        trigger="nonfinite-grad" if np.isfinite(value) else "nonfinite-loss",
        step=3,
        bad_params=bad,
        n_params=len(weights),
        loss_scale=loss_scale,
        forward_finite=bool(np.isfinite(value)),
        healthy_steps=3,
    )
    replays = Investigator(Replayer(names, contextlib.nullcontext), names)
    return replays.investigate(base, (call,), seed_scale=seed_scale)


class FeedForward(nn.Cell):
    """The block of the T5 overflow: squared activations before `wo`, in float16."""

    def __init__(self, width=8):
        super().__init__()
        self.wi = nn.Dense(width, 2 * width)
        self.wo = nn.Dense(2 * width, width)
        self.to_float(ms.float16)

    def construct(self, x):
        h = ops.relu(self.wi(x))
        h = h * h
        return self.wo(h)


class Overflowing(nn.Cell):
    """Inputs of about 2000 reach the block."""

    def __init__(self, scale=2000.0):
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.ffn = FeedForward()
        self.head = nn.Dense(8, 4)
        self.scale = scale

    def construct(self, x):
        x = self.ffn(self.norm(x) * self.scale)
        return self.head(x.astype(ms.float32))


class Linear(nn.Cell):
    """One layer whose output the loss does something to."""

    def __init__(self, n_out=4):
        super().__init__()
        self.proj = nn.Dense(8, n_out)

    def construct(self, x):
        return self.proj(x)


class Attention(nn.Cell):
    """Causal self-attention with an additive mask of -inf."""

    def __init__(self, fill=-np.inf):
        super().__init__()
        self.q, self.k, self.v = nn.Dense(8, 8), nn.Dense(8, 8), nn.Dense(8, 8)
        self.fill = fill

    def construct(self, x, keep):
        scores = ops.matmul(self.q(x), self.k(x).swapaxes(-1, -2)) / 8**0.5
        scores = scores.masked_fill(ops.logical_not(keep), self.fill)
        weights = ops.softmax(scores, -1)
        return ops.matmul(weights, self.v(x))


class Compiled(FeedForward):
    """The same block as a compiled function inside a PyNative program."""

    @ms.jit
    def construct(self, x):
        h = ops.relu(self.wi(x))
        h = h * h
        return self.wo(h)
