"""The search under a loss scaler, in loss code, and where replays say nothing."""

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.judged_evidence import decode
from hypocenter.nouns import Source
from hypocenter.record.reader import open_run
from hypocenter.replay.cure.finder import functions_in, lines_in_float32


class Picky(nn.Module):
    """Works in float16 only."""

    def forward(self, x):
        if x.dtype != torch.float16:
            raise TypeError("only float16 here")
        return x * 6e4 * 2


def net(middle):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))


def cures(model, folder, *, init_scale=None, loss_of=lambda out: out.float().mean(), n_steps=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale or 1.0, enabled=init_scale is not None)
    x = torch.randn(4, 8)
    with hypocenter.watch(out=folder, cure="full"):  # without a limit of time: a busy machine takes longer
        for _ in range(n_steps):
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model(x))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [decode(file.read_bytes()).cure for _, file in open_run(folder).evidence_files()]


class Square(nn.Module):
    def forward(self, x):
        return (x * 400).pow(2) / 1e5


def test_the_cure_is_verified_at_a_scale_that_lets_it_train(tmp_path):
    first, *later = cures(net(Square()), tmp_path / "run", init_scale=65536.0, n_steps=4)

    assert first.targets == ("1",)
    assert first.scale >= 1024.0
    assert {cure.targets for cure in later} <= {("1",)}
    assert all(cure.replays == 1 for cure in later)  # the same place again: tried first


def test_a_scale_that_was_only_too_high_for_the_others_does_not_make_the_island_larger(tmp_path):
    def large(out):
        return out.float().sum() * 4

    (cure,) = cures(net(Square()), tmp_path / "run", init_scale=65536.0, loss_of=large)

    assert cure.targets == ("1",)
    assert 1024.0 <= cure.scale <= 65536.0


def test_a_line_of_loss_code_is_its_own_target(tmp_path):
    def overflowing(out):
        wide = (out.half() + 300) * 400
        return (wide / wide.max().detach()).float().mean()

    (cure,) = cures(net(nn.Tanh()), tmp_path / "run", loss_of=overflowing)

    assert cure.status == "cured"
    assert cure.verified
    (target,) = cure.targets
    assert target.startswith(__file__)
    assert "* 400" in cure.lines[0].text


def test_modules_that_refuse_float32_leave_the_question_open(tmp_path):
    (cure,) = cures(net(Picky()), tmp_path / "run")

    assert cure.status == "cannot-tell"
    assert "only float16 here" in cure.why[0]
    assert not cure.verified


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("scores = q @ k.transpose(-2, -1)", ["transpose", "matmul"]),
        ('Z = torch.einsum("a,b->ab", x, K.sum(dim=1))', ["einsum", "sum"]),
        ("x = helper(y)", []),
    ],
)
def test_functions_of_a_line_as_an_island_names_them(text, names):
    assert functions_in(text) == names


def test_only_the_given_line_is_in_float32():
    x = torch.full((2,), 300.0).half()

    with lines_in_float32([Source(file=__file__, line=line_below())]):
        inside = x * x
        beside = x * x

    assert inside.dtype == torch.float32
    assert torch.isfinite(inside).all()
    assert beside.dtype == torch.float16
    assert torch.isinf(beside).all()


def line_below():
    import sys

    return sys._getframe(1).f_lineno + 1
