"""Rules about training in low precision, on MindSpore programs: each fires on its fault and is silent on the twin."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.amp import DynamicLossScaler, all_finite
from mindspore.experimental import optim

sys.path.insert(0, str(Path(__file__).parent))
from rules_programs import dense, findings, normal  # isort: skip


def plain(out, *, kind=nn.SGD, lr=1e-2, dtype=ms.float32, size=1.0, power=2, n_steps=8, **options):
    """A loop without a loss scaler."""
    net = dense(dtype=dtype)
    optimizer = kind(net.trainable_params(), lr, **options)

    def loop():
        gradient = ms.value_and_grad(
            lambda x: (net(x).astype(ms.float32) ** power).mean() * size, None, optimizer.parameters
        )
        for step in range(n_steps):
            _, grads = gradient(normal(16, 8, seed=step, dtype=dtype))
            optimizer(grads)

    return findings(out, net, loop)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.SGD, nn.Adam])
def test_hc221_updates_are_rounded_away(tmp_path, kind):
    lost = plain(tmp_path / "lost", kind=kind, lr=1e-5, dtype=ms.float16, n_steps=24)
    healthy = plain(tmp_path / "healthy", kind=kind, lr=0.05, dtype=ms.float16, n_steps=24)

    assert lost["HC221"].cause == "update-rounded-away"
    assert "HC221" not in healthy
    assert "HC221" not in plain(tmp_path / "wide", kind=kind, lr=1e-5, n_steps=24)


@pytest.mark.night
def test_hc223_second_moments_are_frozen(tmp_path):
    how = {"kind": nn.Adam, "lr": 1e-3, "eps": 1e-3, "power": 1, "n_steps": 60}

    frozen = plain(tmp_path / "frozen", dtype=ms.float16, size=1e-3, **how)
    healthy = plain(tmp_path / "healthy", dtype=ms.float16, **how)

    assert frozen["HC223"].port == "exp_avg_sq"
    assert "HC223" not in healthy
    assert "HC223" not in plain(tmp_path / "wide", size=1e-3, **how)


def test_hc225_a_hyper_parameter_becomes_zero_in_state(tmp_path):
    found = plain(tmp_path / "low", kind=nn.Adam, dtype=ms.float16, n_steps=3)

    assert found["HC225"].title == "eps of Adam is 0 in state in float16, not 1e-08"
    assert plain(tmp_path / "wide", kind=nn.Adam, n_steps=3) == {}


def scaled(out, step, *, scale=2.0**10, loss=lambda scaler, x: scaler.scale(x), n_steps=8, dtype=ms.float32,
           kind=nn.SGD, begin=lambda *_: None, after=lambda optimizer: lambda updated: None):  # fmt: skip
    """A loop with a loss scaler; `step(optimizer, scaler, gradients)` returns whether it updated."""
    net = dense(dtype=dtype)
    optimizer = kind(net.trainable_params(), 1e-2)

    def loop():
        scaler = DynamicLossScaler(scale, 2, 3)
        begin(optimizer, scaler)
        told = after(optimizer)
        gradient = ms.value_and_grad(
            lambda x: loss(scaler, (net(x).astype(ms.float32) ** 2).mean()), None, optimizer.parameters
        )
        for number in range(n_steps):
            _, grads = gradient(normal(16, 8, seed=number, dtype=dtype))
            told(step(optimizer, scaler, grads))

    return findings(out, net, loop)


def usual(optimizer, scaler, grads):
    finite = bool(all_finite(grads))
    if finite:
        optimizer(scaler.unscale(grads))
    scaler.adjust(Tensor(finite))
    return finite


def test_hc211_clipping_before_unscaling(tmp_path):
    def clips_first(optimizer, scaler, grads):
        optimizer(scaler.unscale(ops.clip_by_global_norm(grads, 1.0)))
        scaler.adjust(all_finite(grads))

    def clips_last(optimizer, scaler, grads):
        optimizer(ops.clip_by_global_norm(scaler.unscale(grads), 1.0))
        scaler.adjust(all_finite(grads))

    found = scaled(tmp_path / "first", clips_first)["HC211"]

    assert found.severity == "error"
    assert "the ratio is the loss scale, 1,024" in found.why[0]
    assert scaled(tmp_path / "last", clips_last) == {}


def test_hc212_unscaled_twice_or_with_another_scale(tmp_path):
    def twice(optimizer, scaler, grads):
        scale = float(scaler.scale_value.asnumpy())
        optimizer(scaler.unscale(tuple(each / scale for each in grads)))
        scaler.adjust(all_finite(grads))

    def adjusts_early(optimizer, scaler, grads):
        scaler.adjust(all_finite(grads))
        optimizer(scaler.unscale(grads))

    assert scaled(tmp_path / "twice", twice)["HC212"].title == "gradients are divided by the loss scale twice"
    early = scaled(tmp_path / "early", adjusts_early)["HC212"]
    assert "with another scale" in early.title
    assert early.why[0].startswith("scaler.adjust() changed the scale between backward and unscale")
    assert (
        early.remedy.text == "call scaler.adjust() once per iteration, after scaler.unscale() has divided the gradients"
    )
    assert scaled(tmp_path / "healthy", usual) == {}


def test_hc213_a_scale_that_was_never_applied(tmp_path):
    found = scaled(tmp_path / "bare", usual, loss=lambda scaler, x: x)
    by_hand = scaled(tmp_path / "by-hand", usual, loss=lambda scaler, x: x * scaler.scale_value)

    assert found["HC213"].actual == 1.0
    assert by_hand == {}


@pytest.mark.night
def test_hc214_a_schedule_that_steps_on_skipped_updates(tmp_path):
    def schedule(*, holds):
        def after(optimizer):
            scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
            return lambda updated: scheduler.step() if updated or not holds else None

        return after

    how = {"scale": 2.0**24, "n_steps": 20, "dtype": ms.float16, "kind": optim.Adam}

    found = scaled(tmp_path / "runs", usual, after=schedule(holds=False), **how)
    healthy = scaled(tmp_path / "holds", usual, after=schedule(holds=True), **how)

    assert found["HC214"].severity == "warning"
    assert "HC214" not in healthy


@pytest.mark.night
def test_hc215_a_scaler_that_starts_anew(tmp_path):
    def resumed(optimizer, scaler):
        optimizer.global_step.set_data(Tensor([500], ms.int32))

    def with_its_scaler(optimizer, scaler):
        resumed(optimizer, scaler)
        scaler.scale_value.set_data(Tensor(2.0**12, ms.float32))

    how = {"scale": 2.0**24, "n_steps": 20, "dtype": ms.float16}

    assert scaled(tmp_path / "anew", usual, begin=resumed, **how)["HC215"].severity == "warning"
    assert "HC215" not in scaled(tmp_path / "restored", usual, begin=with_its_scaler, **how)
    assert "HC215" not in scaled(tmp_path / "first", usual, **how)


class Weights(nn.Cell):
    """Products alone: the only thing that MindSpore computes in bfloat16 on a CPU."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((4, 8), np.float32)).astype(dtype), name="weight")

    def construct(self, x):
        return (x * self.weight).astype(ms.float32)


def test_hc217_a_scaler_with_bfloat16(tmp_path):
    def train(dtype):
        net = Weights(dtype)

        def loop():
            scaler = DynamicLossScaler(2.0**10, 2, 1000)
            wide = [Parameter(Tensor(np.ones((4, 8), np.float32)), name="wide")]
            optimizer = nn.SGD(wide, 1e-2)
            gradient = ms.value_and_grad(lambda x: scaler.scale(net(x).mean()), None, net.trainable_params())
            for step in range(3):
                _, grads = gradient(normal(4, 8, seed=step, dtype=dtype))
                grads = grads if isinstance(grads, tuple) else (grads,)
                optimizer(tuple(each.astype(ms.float32) for each in scaler.unscale(grads)))
                scaler.adjust(Tensor(True))
                net.weight.set_data(wide[0].astype(dtype))

        return findings(tmp_path / str(dtype), net, loop)

    assert train(ms.bfloat16)["HC217"].severity == "note"
    assert "HC217" not in train(ms.float16)


def accumulating(
    out, add, *, sizes=(1.0, 1.0, 1.0, 1.0), dtype=ms.float32, n_steps=4, inputs=(), done=lambda grads: grads, **options
):
    """Every step adds up micro-batches by `add(sum so far, gradients, number)`; the loss of each is of its own size."""
    net = dense(dtype=dtype)
    optimizer = nn.SGD(net.trainable_params(), 1e-3)
    sizes = [Tensor(size, ms.float32) for size in sizes]

    def loop():
        gradient = ms.value_and_grad(
            lambda x, size: ((net(x).astype(ms.float32)) * size).sum(), None, optimizer.parameters
        )
        for step in range(n_steps):
            total = None
            for number, size in enumerate(sizes):
                given = inputs[number] if inputs else normal(1, 8, seed=10 * step + number, dtype=dtype)
                total = add(total, gradient(given, size)[1], number)
            optimizer(tuple(each.astype(dtype) for each in done(total)))

    return findings(out, net, loop, **options)


def adds(total, grads, number):
    return grads if total is None else tuple(a + b for a, b in zip(total, grads, strict=True))


@pytest.mark.night
def test_hc224_accumulation_stalls(tmp_path):
    def adds_wide(total, grads, number):
        return adds(total, tuple(each.astype(ms.float32) for each in grads), number)

    # 1 + 4.8e-4 is 1 in float16; the directions differ, or the lost sum would be a multiple of the exact one
    values = np.random.default_rng(0).uniform(0.9, 1.0, (270, 1, 8)).astype(np.float32)
    values[0] = values[0] / 2 + 0.55
    inputs = [Tensor(each).astype(ms.float16) for each in values]
    how = {"sizes": (1.0, *[4.8e-4] * 269), "dtype": ms.float16, "n_steps": 4, "inputs": inputs, "audit": "never"}

    assert accumulating(tmp_path / "low", adds, **how)["HC224"].cause == "update-rounded-away"
    assert "HC224" not in accumulating(tmp_path / "wide", adds_wide, **how)


def test_hc332_a_micro_batch_is_lost(tmp_path):
    def forgets_the_first_half(total, grads, number):
        return grads if number == 2 else adds(total, grads, number)

    lost = accumulating(tmp_path / "lost", forgets_the_first_half)
    mean = accumulating(tmp_path / "mean", adds, done=lambda grads: ops.clip_by_global_norm(grads, 0.1))
    weighed = accumulating(tmp_path / "weighed", adds, sizes=(0.3, 1.0, 2.0, 0.5))

    assert lost["HC332"].microbatch == 0
    assert "HC332" not in mean
    assert "HC332" not in weighed


LEFT_OVER = (4, 4, 4, 6, 4, 4)  # micro-batches before each update: two are left over of a pass


@pytest.mark.parametrize(
    ("counts", "of_loss", "of_sum", "cleared", "told"),
    [
        (LEFT_OVER, 1, 4, 0, 3), (LEFT_OVER, 4, 1, 0, 3), (LEFT_OVER, 1, 4, 2, None), (LEFT_OVER, 1, 0, 0, None),
        (LEFT_OVER, 1, 1, 0, None), (LEFT_OVER, 1, 1, 2, None), ((4, 4, 4, 6, 6, 6), 1, 4, 0, None),
        ((4, 4, 4, 2, 4, 4), 1, 4, 0, None),
    ],
    ids=["sum", "loss", "cleared", "mean", "undivided", "undivided-cleared", "larger", "smaller"],
)  # fmt: skip
def test_hc232_micro_batches_of_the_pass_before(tmp_path, counts, of_loss, of_sum, cleared, told):
    """Each loss and sum is divided by a number (0: how many there are); at six the first ones may be thrown away."""
    net, draw = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 4)), np.random.default_rng(0)
    optimizer = nn.Momentum(net.trainable_params(), 1e-2, 0.9)

    def loop():
        gradient = ms.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y) / of_loss, None, optimizer.parameters)
        for n in counts:
            total = None
            for number in range(n):
                given = (Tensor(draw.normal(size=(16, size)).astype(np.float32)) for size in (8, 4))
                total = adds(None if n == 6 and number == cleared else total, gradient(*given)[1], number)
            optimizer(tuple(each / (of_sum or n) for each in total))

    found = findings(tmp_path / "run", net, loop)
    assert "HC332" not in found
    assert (found["HC232"].step if "HC232" in found else None) == told
    assert told is None or found["HC232"].title.endswith("is of 6 micro-batches, each divided by 4")


class Dropped(nn.Cell):
    """A layer whose mask comes from a generator that MindSpore does not know, and begins anew at every call or not."""

    def __init__(self, *, rewinds):
        super().__init__()
        self.inner, self.rewinds, self.draw = nn.Dense(8, 8), rewinds, np.random.default_rng(0)

    def construct(self, x):
        y = self.inner(x)
        draw = np.random.default_rng(0) if self.rewinds else self.draw
        return y * Tensor((draw.random(y.shape) > 0.5).astype(np.float32))


class Recomputing(nn.Cell):
    def __init__(self, *, rewinds):
        super().__init__()
        self.block, self.head = Dropped(rewinds=rewinds), nn.Dense(8, 4)

    def construct(self, x):
        return self.head(ms.recompute(self.block, x))


def test_hc336_recompute_draws_another_mask(tmp_path):
    def train(*, rewinds):
        ms.set_seed(1)
        net = Recomputing(rewinds=rewinds)
        net.set_train()
        optimizer = nn.SGD(net.trainable_params(), 1e-2)

        def loop():
            gradient = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
            for step in range(4):
                optimizer(gradient(normal(16, 8, seed=step))[1])

        return findings(tmp_path / str(rewinds), net, loop)

    found = train(rewinds=False)["HC336"]

    assert (found.site, found.cause) == ("block", "rng-desync")
    assert "HC336" not in train(rewinds=True)
