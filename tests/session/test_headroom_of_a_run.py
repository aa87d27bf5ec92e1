"""`headroom` on real recordings: what float16 would do to a bfloat16 run is what a cast of its tensors does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hypocenter
from hypocenter.formats import find_format
from hypocenter.record.reader import open_run
from hypocenter.report.headroom.answer import Answer, answers


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def asked(run: Path, scale: float | None = None, form: str = "fp16") -> Answer:
    recording = open_run(run)
    return answers(recording.table(), recording.step_records(), (find_format(form),), scale=scale, level="modules")[0]


@pytest.mark.parametrize("scale", [2.0**-6, 1.0, 65536.0])
def test_a_bfloat16_run_answers_for_float16_without_a_rerun(tmp_path: Path, scale: float) -> None:
    torch.set_num_threads(1)
    net = model().bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    session = hypocenter.watch(
        net, optimizer, level="modules", out=str(tmp_path / "run"), histogram="full", param_schedule="every=1"
    )
    kept: dict[str, list[torch.Tensor]] = {name: [] for name, _ in net.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        (net(torch.randn(16, 8).bfloat16()).float().square().mean() * 1e-4).backward()
        for name, p in net.named_parameters():
            assert p.grad is not None
            kept[name].append(p.grad.double().reshape(-1))
        optimizer.step()
    session.close()

    found = {line.site: line for line in asked(tmp_path / "run", scale).lines if line.phase == "grad"}

    assert set(found) == set(kept)
    for name, grads in kept.items():
        scaled = torch.cat(grads) * scale
        cast = scaled.to(torch.float16)
        assert found[name].overflows == bool(cast.isinf().any())
        assert found[name].flushed == pytest.approx(float(((cast == 0) & (scaled != 0)).double().mean()))
        assert found[name].absmax == float(scaled.abs().max())


@pytest.mark.parametrize("unscales", [False, True])
def test_the_scale_is_taken_out_of_gradients_whether_the_program_unscales_them_or_not(
    tmp_path: Path, unscales: bool
) -> None:
    torch.set_num_threads(1)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    session = hypocenter.watch(net, optimizer, level="modules", out=str(tmp_path / "run"), param_schedule="every=1")
    largest = 0.0
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(torch.randn(16, 8))
        scaler.scale(out.float().square().mean()).backward()
        assert isinstance(net[2].weight.grad, torch.Tensor)
        largest = max(largest, float(net[2].weight.grad.abs().max()) / 512.0)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    session.close()

    plain = asked(tmp_path / "run", 1.0)

    line = next(x for x in plain.lines if x.site == "2.weight" and x.phase == "grad")
    assert line.absmax == pytest.approx(largest, rel=1e-6)
    assert plain.recorded == (512.0,)
    assert plain.window is not None
    assert plain.window.holds(512.0)


class KeySum(torch.nn.Module):
    """The normaliser of a linear attention."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, key: torch.Tensor) -> torch.Tensor:
        total = (key * self.scale).sum(1)
        return 1.0 / total


def test_a_float32_run_tells_at_which_length_float16_would_overflow(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    net = KeySum()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    session = hypocenter.watch(net, optimizer, level="ops", out=str(tmp_path / "run"))
    optimizer.zero_grad()
    net(torch.full((1, 4096, 8), 10.0)).mean().backward()
    optimizer.step()
    session.close()

    found = [r for r in asked(tmp_path / "run").reductions if r.op.startswith("aten.sum") and r.phase == "forward"]

    assert [r.sentence(find_format("fp16")) for r in found] == [
        "in float16 it overflows from about 6,550 terms on (now 4,096)"
    ]
    assert found[0].source == "total = (key * self.scale).sum(1)"
    readings = list(open_run(tmp_path / "run").readings())
    terms = [r for r in readings if r.port.startswith("terms[")]
    assert {r.op.split(".")[1] for r in terms} >= {"sum", "mean"}
    assert all(r.shape == (1, 4096, 8) for r in terms if r.phase == "forward" and r.op.startswith("aten.sum"))


class Normed(torch.nn.Module):
    """A norm of small activations: what its derivative saved, 1 / rms to the power 3, is larger than float16 holds."""

    def __init__(self, norm: torch.nn.Module, *, by_hand: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 32), norm, torch.nn.Linear(32, 1)
        self.by_hand = by_hand
        with torch.no_grad():
            self.first.weight.mul_(0.02)
            self.first.bias.mul_(0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) if self.by_hand else self.norm(h)
        return self.last(torch.nn.functional.gelu(h))


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["recorded", "replayed"])
@pytest.mark.parametrize("norm", ["rms by hand", "rms", "layer", "softmax"])
def test_a_norm_does_not_ask_for_a_loss_scale_below_one(tmp_path: Path, norm: str, fails: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    norms = {"rms": torch.nn.RMSNorm(32), "layer": torch.nn.LayerNorm(32), "softmax": torch.nn.Softmax(-1)}
    net = Normed(norms.get(norm, torch.nn.Identity()), by_hand=norm == "rms by hand")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    session = hypocenter.watch(net, optimizer, level="sentinel" if fails else "ops", out=str(tmp_path / "run"))
    for step in range(3):
        optimizer.zero_grad()
        loss = (net(torch.randn(64, 8)) - 0.1).square().mean()
        if fails and step == 2:
            loss = loss + torch.sqrt((net.first.bias.sum() * 0.0) ** 2)  # that parameter's gradient alone is NaN
        loss.backward()
        optimizer.step()
    session.close()

    found = asked(tmp_path / "run")

    assert found.window is not None
    assert found.largest_power is not None
    assert 6 <= found.largest_power <= 24
    cubes = [x for x in found.lines if x.phase == "backward" and "pow" in x.op and x.absmax > 1e4]
    assert [(x.port, x.is_scaled, x.scale) for x in cubes] == [("out[0]", False, 1.0)] * norm.startswith("rms")
