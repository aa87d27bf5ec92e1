"""tap/modules.py: what is read, that it is right, and that the run does not notice."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hypocenter.config import Config
from hypocenter.nouns import Reading
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap

Make = Callable[..., ModuleTap]


@pytest.fixture
def make(reducer, clock, warnings_given) -> Iterator[Make]:
    undos: list[Callable[[], None]] = []
    maps: list[NameMap] = []

    def build(model: nn.Module, **options: object) -> ModuleTap:
        names = NameMap()
        names.add_root(model)
        tap = ModuleTap(names, reducer, clock, Config(**options), warnings_given.append)
        undos.append(tap.attach())
        maps.append(names)
        tap.enabled = True
        return tap

    yield build
    for undo in undos:
        undo()
    for names in maps:
        names.close()


class Block(nn.Module):
    """A residual block with dropout, in-place code and a keyword argument."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(self.act(self.up(self.norm(x))))
        if mask is not None:
            y = y.masked_fill_(mask, 0.0)
        return x + self.drop(y)


class Net(nn.Module):
    def __init__(self, mode: str = "plain", n_blocks: int = 3) -> None:
        super().__init__()
        self.mode = mode
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))
        self.shared = Block()
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        mask = torch.zeros(x.shape, dtype=torch.bool)
        mask[0, 0] = True
        for block in [*self.blocks, self.shared, self.shared]:
            if self.mode == "plain":
                x = block(x, mask=mask)
            else:
                x = checkpoint(block, x, mask, use_reentrant=self.mode == "reentrant")
        return self.head(x)


def losses_and_gradients(model: nn.Module, tap: ModuleTap | None, clock, n_steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    out: list[torch.Tensor] = []
    for step in range(n_steps):
        if step == 2:
            model.late = nn.Linear(1, 1)  # a module added mid-training
        for _ in range(2):
            y = model(torch.randn(5, 4))
            loss = (model.late(y) if step == 2 else y).square().mean()
            loss.backward()
            clock.end_microbatch()
            out.append(loss.detach().clone())
        out += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        clock.begin_update(1)
        if tap is not None:
            assert tap.collect(step)
        clock.end_update()
    out += [p.detach().clone() for p in model.parameters()]
    return [*out, torch.get_rng_state()]


@pytest.mark.parametrize("mode", ["plain", "reentrant", "non-reentrant"])
def test_losses_gradients_parameters_and_rng_are_bit_identical(mode: str, make: Make, clock, warnings_given) -> None:
    model = Net(mode)
    twin = copy.deepcopy(model)
    expected = losses_and_gradients(twin, None, clock)

    tap = make(model)
    actual = losses_and_gradients(model, tap, clock)

    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert warnings_given == []


@dataclass
class Truth:
    """What plain hooks on each module see, by (site, port, call)."""

    tensors: dict[tuple[str, str, int], torch.Tensor]


def truth_of(model: nn.Module, run: Callable[[], None]) -> Truth:
    truth, calls, handles = Truth({}), {}, []

    def before(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        calls[name] = calls.get(name, -1) + 1
        for key, value in [*enumerate(args), *kwargs.items()]:
            save(name, f"in[{key}]", calls[name], value)

    def save(name: str, port: str, call: int, value: object) -> None:
        if isinstance(value, torch.Tensor):
            truth.tensors[name, port, call] = value.detach().clone()
            if value.requires_grad:
                value.register_hook(lambda g: truth.tensors.__setitem__((name, f"grad_{port}", call), g.clone()))

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, a, k, n=name: before(n, a, k), with_kwargs=True))
        handles.append(module.register_forward_hook(lambda m, a, o, n=name: save(n, "out[0]", calls[n], o)))
    run()
    for handle in handles:
        handle.remove()
    return truth


@pytest.mark.parametrize("create_graph", [False, True])
def test_every_reading_has_the_values_that_plain_hooks_see(create_graph, make: Make, reducer, clock) -> None:
    model, x = Net().eval(), torch.randn(5, 4)
    run = lambda: model(x).square().mean().backward(create_graph=create_graph)  # noqa: E731
    truth = truth_of(model, run)

    tap = make(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    readings = tap.collect(0)

    assert {(r.site, r.port, r.call) for r in readings} == set(truth.tensors)
    for r in readings:
        expected = truth.tensors[r.site, r.port, r.call]
        assert r.summary == reducer.summary(expected)
        assert (r.shape, r.dtype) == (tuple(expected.shape), str(expected.dtype).removeprefix("torch."))


def test_a_tensor_is_reduced_once_although_several_modules_touch_it(make: Make, reducer) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tap = make(model)

    model(torch.ones(2, 3)).sum().backward()
    readings = tap.collect(0)

    assert len(readings) == 6 + 4  # in and out of three modules; grad_out of three, grad_in of the second Linear
    assert reducer.added == 3 + 2


def test_what_was_written_to_in_place_is_read_again(make: Make) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    tap = make(model)

    model(torch.ones(2, 3)).sum().backward()
    by_port = {(r.site, r.port): r.summary for r in tap.collect(0)}

    assert by_port["0", "out[0]"] == by_port["1", "in[0]"]
    assert by_port["1", "in[0]"].absmax > 0
    assert by_port["1", "out[0]"].absmax == 0
    assert by_port["0", "grad_out[0]"].absmax == 0
    assert by_port["1", "grad_out[0]"].absmax == 1


def test_readings_are_in_execution_order_with_names_and_classes(make: Make) -> None:
    model = Net()
    tap = make(model)

    model(torch.ones(2, 4)).sum().backward()
    readings = tap.collect(5)

    forward = [(r.site, r.port) for r in readings if r.phase == "forward"]
    assert forward[:3] == [("", "in[0]"), ("embed", "in[0]"), ("embed", "out[0]")]
    assert forward[-1] == ("", "out[0]")
    assert ("blocks.1", "in[mask]") in forward
    assert [r.order for r in readings] == sorted(r.order for r in readings)
    assert {r.module for r in readings if r.site == "embed"} == {"Linear"}
    assert {r.step for r in readings} == {5}
    assert {r.call for r in readings if r.site == "shared.up"} == {0, 1}
    backward = [(r.site, r.port) for r in readings if r.phase == "backward"]
    assert backward.index(("head", "grad_out[0]")) < backward.index(("embed", "grad_out[0]"))


def test_a_shared_module_has_all_its_names(make: Make) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.append(model[0])
    tap = make(model)

    model(torch.ones(1, 2))

    readings = [r for r in tap.collect(0) if r.module == "Linear"]
    assert {(r.site, r.names) for r in readings} == {("0", ("0", "1"))}
    assert {r.call for r in readings} == {0, 1}


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
def test_a_recompute_is_labelled_and_its_gradients_come_once(mode: str, make: Make, clock) -> None:
    plain, model, x = Net(), Net(mode), torch.randn(5, 4)
    model.load_state_dict(plain.state_dict())
    gradients: list[set[tuple[str, str, int]]] = []
    for net in (plain.eval(), model.eval()):
        tap = make(net)
        net(x).square().mean().backward()
        readings = tap.collect(0)
        tap.enabled = False
        grads = [(r.site, r.port, r.call) for r in readings if r.phase == "backward"]
        assert len(grads) == len(set(grads))
        gradients.append({(site, port, 0) for site, port, _ in grads if ".up" in site})

    assert gradients[0] == gradients[1]
    again = [r for r in readings if r.recompute]
    assert {r.site for r in again} >= {"blocks.0", "blocks.0.up", "shared.norm"}
    assert {r.phase for r in again} == {"forward"}
    first = {(r.site, r.port, r.call) for r in readings if r.phase == "forward" and not r.recompute}
    assert {(r.site, r.port, r.call) for r in again} <= first
    assert {r.microbatch for r in readings} == {0}


def test_selective_checkpointing_does_not_see_our_operators(make: Make) -> None:
    def save_everything(ctx: object, op: object, *args: object, **kwargs: object) -> bool:
        return True

    contexts = lambda: create_selective_checkpoint_contexts(save_everything)  # noqa: E731
    model, x = Block(), torch.randn(5, 8)
    model.act, model.drop = nn.GELU(), nn.Identity()  # torch itself allows no in-place code there
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    checkpoint(twin, x, use_reentrant=False, context_fn=contexts).sum().backward()

    tap = make(model)
    torch.manual_seed(1)
    checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()

    assert tap.collect(0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


class Odd(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.value


class Weird:
    def __init__(self) -> None:
        self.hidden = torch.ones(2)


ODD = {
    "bool": (torch.ones(2, dtype=torch.bool), ["[0]"]),
    "int": (torch.ones(2, dtype=torch.int64), ["[0]"]),
    "complex": (torch.ones(2, dtype=torch.complex64), ["[0]"]),
    "empty": (torch.ones(0, 3), ["[0]"]),
    "scalar": (torch.tensor(1.0), ["[0]"]),
    "sparse": (torch.eye(3).to_sparse(), ["[0]"]),
    "meta": (torch.ones(3, device="meta"), ["[0]"]),
    "fp8": (torch.ones(3).to(torch.float8_e4m3fn), ["[0]"]),
    "nested tensor": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), None),
    "quantized": (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), None),
    "none": (None, []),
    "float": (1.5, []),
    "dict": ({"logits": torch.ones(1), "past": (torch.ones(1), None)}, ["[logits]", "[past][0]"]),
    "list": ([torch.ones(1), [torch.ones(1)]], ["[0]", "[1][0]"]),
    "object": (Weird(), ["[hidden]"]),
    "many": ([torch.ones(1)] * 5000, None),
}


@pytest.mark.parametrize(("value", "ports"), ODD.values(), ids=ODD.keys())
def test_no_kind_of_value_is_too_odd(value: object, ports: list[str] | None, make: Make) -> None:
    model = Odd(value)
    tap = make(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(value, key=value) is value
    found = [r.port for r in tap.collect(0)]

    assert tap.enabled
    if ports is not None:
        keyed = ["in[0]", "in[key]"] if ports == ["[0]"] else [p + s for p in ("in[0]", "in[key]") for s in ports]
        assert found == [*keyed, *(f"out{port}" for port in ports)]


def test_a_dtensor_is_read(make: Make, tmp_path) -> None:
    dist = torch.distributed
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        value = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
        tap = make(model := Odd(value))
        model(value)
        assert [r.port for r in tap.collect(0) if r.port != "in[0]"] in (["out[0]"], [])
        assert tap.enabled
    finally:
        dist.destroy_process_group()


def test_sites_are_chosen_by_globs(make: Make) -> None:
    model = Net()
    tap = make(model, sites=("blocks.*",), exclude=("*.drop",))

    model(torch.ones(2, 4))

    sites = {r.site for r in tap.collect(0)}
    assert "blocks.0.up" in sites
    assert not any(s.endswith("drop") or not s.startswith("blocks.") for s in sites)


def test_nothing_is_read_while_disabled_or_not_recording(make: Make, clock, reducer) -> None:
    model = Net()
    tap = make(model)

    tap.enabled = False
    model(torch.ones(2, 4)).sum().backward()
    tap.enabled, clock.recording = True, False
    with torch.no_grad():
        model(torch.ones(2, 4))

    assert tap.collect(0) == []
    assert reducer.added == 0


def test_microbatches_and_calls_are_numbered(make: Make, clock) -> None:
    model = nn.Linear(2, 2)
    tap = make(model)

    for _ in range(3):
        (model(torch.ones(1, 2)) + model(torch.ones(1, 2))).sum().backward()
        clock.end_microbatch()

    outs = [(r.microbatch, r.call) for r in tap.collect(0) if r.port == "out[0]"]
    assert outs == [(m, c) for m in range(3) for c in range(2)]


def test_a_module_that_raises_leaves_the_counters_right(make: Make) -> None:
    class Sometimes(nn.Module):
        fails = True

        def forward(self, x: torch.Tensor, **kwargs: object) -> torch.Tensor:
            if self.fails:
                raise ValueError("user's own")
            return x

    model = nn.Sequential(nn.Linear(2, 2), Sometimes())
    tap = make(model)

    with pytest.raises(ValueError, match="user's own"):
        model(torch.ones(1, 2))
    Sometimes.fails = False
    model(torch.ones(1, 2))

    ports = [(r.site, r.port, r.call) for r in tap.collect(0) if r.site == "1"]
    assert ports == [("1", "in[0]", 0), ("1", "in[0]", 1), ("1", "out[0]", 1)]


def test_a_tap_that_fails_switches_itself_off_says_so_once_and_training_goes_on(
    make: Make, clock, warnings_given, monkeypatch
) -> None:
    model = Net()
    expected = losses_and_gradients(copy.deepcopy(model), None, clock)
    tap = make(model)
    monkeypatch.setattr(clock, "next_order", lambda: 1 / 0)

    actual = losses_and_gradients(model, None, clock)

    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert not tap.enabled
    assert len(warnings_given) == 1
    assert "ZeroDivisionError" in warnings_given[0]


def test_a_reducer_that_refuses_one_dtype_leaves_the_rest(make: Make, reducer, warnings_given, monkeypatch) -> None:
    add = reducer.add
    monkeypatch.setattr(reducer, "add", lambda t: 1 / 0 if t.dtype == torch.bool else add(t))
    model = Net()
    tap = make(model)

    model(torch.ones(2, 4))
    ports = {r.port for r in tap.collect(0)}

    assert "in[mask]" not in ports
    assert "out[0]" in ports
    assert len(warnings_given) == 1


def test_no_tensor_and_no_tap_is_kept_alive(make: Make) -> None:
    class Keep(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            kept.append(weakref.ref(y))
            return y

    kept: list[weakref.ref[torch.Tensor]] = []
    model = Keep()
    tap = make(model)
    gc.disable()
    try:
        out = model(torch.ones(2, requires_grad=True))
        out.sum().backward()
        del out
        assert kept[0]() is None
    finally:
        gc.enable()
    assert len(tap.collect(0)) == 4


def test_leaf_inputs_do_not_gather_hooks_and_outputs_can_be_saved(make: Make) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    tap = make(model)

    for step in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = model(x)
            torch.save(y, io.BytesIO())
        y.sum().backward()
        assert sum(r.port == "grad_in[0]" for r in tap.collect(step)) == 1

    assert not x._backward_hooks


def test_a_graph_kept_over_a_step_counts_where_its_backward_runs(make: Make, clock) -> None:
    model = nn.Linear(2, 2)
    tap = make(model)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward(retain_graph=True)
    clock.end_microbatch()
    assert len(tap.collect(0)) == 3

    clock.begin_update(1)
    clock.end_update()
    clock.microbatch = 4
    loss.backward()

    assert [(r.port, r.microbatch) for r in tap.collect(1)] == [("grad_out[0]", 4)]


def test_vmap_and_jit_trace_are_left_alone(make: Make) -> None:
    model = nn.Linear(2, 2)
    expected = model(torch.ones(3, 2))
    tap = make(model)

    assert torch.equal(torch.vmap(model)(torch.ones(3, 2)), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(model, torch.ones(3, 2), check_trace=False)

    assert tap.enabled
    assert tap.collect(0) == []
    assert [n.kind() for n in traced.graph.nodes() if "prim" not in n.kind()] == ["aten::linear"]


def test_frames_are_the_last_module_calls(make: Make) -> None:
    model = Net()
    tap = make(model, frames=4)

    model(torch.ones(2, 4)).sum().backward()
    readings: list[Reading] = tap.collect(0)
    frames = tap.frames()

    assert len(frames) == 4
    assert frames[-1].readings[-1] is readings[-1]
    assert {frame.phase for frame in frames} == {"backward"}


def test_a_compiled_model_is_left_alone(make: Make) -> None:
    from torch._dynamo.testing import CompileCounter

    model, counter = Net().eval(), CompileCounter()
    tap = make(model)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for enabled in (True, False, True):
        tap.enabled = enabled
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(torch.ones(2, 4)).sum().backward()

    assert counter.frame_count == 1
    assert tap.enabled
