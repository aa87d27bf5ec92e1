"""tap/compiled.py: what is read of a compiled model, and that neither its bits nor its graphs change."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from hypocenter.config import Config
from hypocenter.nouns import Summary
from hypocenter.tap.compiled import CompiledTap, Slots, fold
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap

COUNTERS = torch._dynamo.utils.counters


class Attention(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.softmax = nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (f(x).view(batch, time, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = self.softmax(q @ k.transpose(-1, -2) / math.sqrt(width / self.n_heads))
        return self.o((weights @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.up, self.act, self.down = nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Residual(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 32),
            nn.GELU(),
            nn.Linear(32, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def small(block: type[nn.Module] = Block) -> nn.Module:
    return nn.Sequential(block(), block(), nn.Linear(16, 4))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    COUNTERS.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def watch(clock, warnings_given):
    undos = []

    def build(model: nn.Module, **options: object) -> CompiledTap:
        names = NameMap()
        names.add_root(model)
        tap = CompiledTap(names, clock, Config(**options), warnings_given.append)
        undos.extend([tap.attach(), names.close])
        return tap

    yield build
    for undo in undos:
        undo()


def train(model: nn.Module, compiled: nn.Module, mode: str, tap: CompiledTap | None = None) -> list[torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(2, 6, 16, dtype=torch.bfloat16 if mode == "bfloat16" else torch.float32)
    optimizer, out = torch.optim.SGD(model.parameters(), lr=1e-2), []
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            loss = compiled(x).float().square().mean()
        loss.backward()
        out += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if tap is not None:
            tap.collect(step)
    return out


@pytest.mark.night  # by day tests/session/test_compile.py has Inductor, under a whole session
@pytest.mark.parametrize("block", [Residual, Block])
@pytest.mark.parametrize("mode", ["float32", "autocast", "bfloat16"])
def test_inductor_gives_the_same_bits_in_one_graph(mode: str, block, watch) -> None:
    model = small(block).to(torch.bfloat16 if mode == "bfloat16" else torch.float32)
    twin = copy.deepcopy(model)
    expected = train(twin, torch.compile(twin, fullgraph=True), mode)
    torch._dynamo.reset()
    COUNTERS.clear()

    tap = watch(model)
    with torch._dynamo.config.patch(error_on_recompile=True):
        actual = train(model, torch.compile(model, fullgraph=True), mode, tap)

    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert COUNTERS["stats"]["unique_graphs"] == 1
    assert not COUNTERS["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_readings_are_those_of_the_eager_model_without_breaks_or_recompiles(in_place: bool, watch, reducer) -> None:
    model, x = Model(), torch.randn(2, 6, 16)
    expected: dict[str, Summary] = {}
    handles = [
        m.register_forward_hook(lambda m, a, o, n=n: expected.__setitem__(n, reducer.summary(o)))
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear)
    ]
    model(x)
    for handle in handles:
        handle.remove()

    tap = watch(model)
    compiled = model if in_place else torch.compile(model, backend="aot_eager", fullgraph=True)
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            compiled(x).sum().backward()
            readings = tap.collect(step)

    assert {r.site for r in readings} == set(expected)
    for r in readings:
        assert (r.step, r.phase, r.port, r.dtype, r.module) == (2, "forward", "out[0]", "float32", "Linear")
        assert (r.summary.n, r.summary.n_nan) == (expected[r.site].n, 0)
        assert r.summary.absmax == pytest.approx(expected[r.site].absmax)
        assert r.summary.sumsq == pytest.approx(expected[r.site].sumsq, rel=1e-4)
    assert COUNTERS["stats"]["unique_graphs"] == 1
    assert not COUNTERS["graph_break"]


def test_microbatches_of_a_step_are_merged_and_evaluation_is_left_out(watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    tap = watch(model)
    compiled = torch.compile(model, backend="aot_eager")

    for rows in (2, 2):
        compiled(torch.ones(rows, 3)).sum().backward()
    with torch.no_grad():
        compiled(torch.ones(2, 3))

    assert [r.summary.n for r in tap.collect(0)] == [12]
    assert tap.collect(1) == []


def test_a_compiled_model_under_the_module_tap_shows_what_goes_in_and_out(clock, reducer, warnings_given) -> None:
    model, x = small(), torch.randn(2, 6, 16)
    names = NameMap()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    names.add_root(compiled)
    tap = ModuleTap(names, reducer, clock, Config(), warnings_given.append)
    undo = tap.attach()
    tap.enabled = True
    try:
        out = compiled(x)
        out.sum().backward()
        readings = tap.collect(0)
        with torch.compiler.set_stance("force_eager"):
            compiled(x).sum().backward()
        eager = tap.collect(1)
    finally:
        undo()
        names.close()

    found = {(r.site, r.port, r.module): r.summary for r in readings}
    assert set(found) == {("", port, "Sequential") for port in ("in[0]", "out[0]", "grad_out[0]")}
    assert found["", "out[0]", "Sequential"] == reducer.summary(out)
    keys = [(r.site, r.port, r.call) for r in eager]
    assert len(keys) == len(set(keys))
    assert ("1.attention.q", "grad_out[0]", 0) in keys


def test_hooks_that_run_between_graphs_are_not_compiled_themselves(clock, reducer, warnings_given) -> None:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list as compiled_versions

    model, names = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), NameMap()
    names.add_root(model)
    tap = ModuleTap(names, reducer, clock, Config(), warnings_given.append)
    compiled_tap = CompiledTap(names, clock, Config(), warnings_given.append)
    undos = [tap.attach(), compiled_tap.attach(), names.close]
    tap.enabled = True
    try:
        model.compile(backend="aot_eager")  # of a Sequential torch compiles the children, and calls the hooks itself
        model(torch.ones(2, 4)).sum().backward()
        tap.collect(0)
    finally:
        for undo in undos:
            undo()

    for hook in (ModuleTap._begin, ModuleTap._end, ModuleTap._enter, CompiledTap._begin):
        assert compiled_versions(hook.__code__) == []
    assert warnings_given == []


def test_hooks_that_come_too_late_are_said_once(watch, warnings_given) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.ones(1, 3)).sum().backward()

    tap = watch(model)
    for step in range(2):
        compiled(torch.ones(1, 3)).sum().backward()
        assert tap.collect(step) == []

    assert len(warnings_given) == 1
    assert "ran before Hypocenter started" in warnings_given[0]


def test_the_model_can_be_copied_and_pickled_and_forgets_the_hooks(watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watch(model)
    torch.compile(model, backend="eager")(torch.ones(1, 3))
    assert model[0]._forward_hooks
    pickled = pickle.dumps(model)

    assert b"hypocenter" not in pickled
    for again in (pickle.loads(pickled), copy.deepcopy(model)):
        assert torch.equal(again(torch.ones(1, 3)), model(torch.ones(1, 3)))


def test_everything_forward_and_backward_is_read_on_request_with_a_warning(watch, warnings_given) -> None:
    model = small()
    tap = watch(model, compiled_backward=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)

    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(2):
            compiled(torch.randn(2, 6, 16)).sum().backward()
            readings = tap.collect(step)

    found = {(r.site, r.port): r.summary for r in readings}
    assert {("0.norm", "out[0]"), ("0.norm", "grad_out[0]"), ("1.attention.softmax", "grad_out[0]")} < set(found)
    assert (found["2", "grad_out[0]"].min, found["2", "grad_out[0]"].max) == (1.0, 1.0)
    assert len(warnings_given) == 1
    assert "changes the numerics" in warnings_given[0]


def test_max_autotune_is_left_alone(watch, warnings_given) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watch(model)

    model.compile(mode="max-autotune")

    assert not model[0]._forward_hooks
    assert "max-autotune" in warnings_given[0]


@pytest.mark.parametrize(("mode", "told"), [(None, "on a device"), ("reduce-overhead", "from a graph")])
def test_nothing_is_read_inside_on_a_device(watch, warnings_given, mode, told) -> None:
    model = nn.Sequential(nn.Linear(3, 3, device="meta"))
    watch(model)

    model.compile(mode=mode)

    assert not model[0]._forward_hooks
    assert told in warnings_given[0]


def test_a_slot_holds_what_was_folded_and_starts_anew(reducer) -> None:
    slots = Slots()
    slot, other = slots.take(torch.device("cpu")), slots.take(torch.device("cpu"))
    values = torch.tensor([1.0, -3.0, math.nan, math.inf, -math.inf, -math.inf])

    fold(values, slot.sums, slot.peaks)
    fold(values.to(torch.bfloat16), other.sums, other.peaks)
    fold(2 * values, slot.sums, slot.peaks)
    found = slots.drain()

    dtype, summary = found[slot.index]
    assert dtype == torch.float32
    assert found[other.index][0] == torch.bfloat16
    assert summary == Summary(
        n=12, n_nan=2, n_posinf=2, n_neginf=4, min=-6.0, max=2.0, absmax=6.0, sum=-6.0, sumsq=50.0
    )
    assert slots.drain() == {}
