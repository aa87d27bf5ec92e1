"""Which taps are on: the level, its schedule, traced batches; their rows are collected at each update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Place, Reading, Summary
from hypocenter.record.facts_file import add_calls
from hypocenter.session.facts.plain import NOT_PLAIN, plain
from hypocenter.session.trained import Trained, trained
from hypocenter.summary.reducers.torch import TorchReducer
from hypocenter.summary.sketch import Placement
from hypocenter.tap.clock import Clock
from hypocenter.tap.compiled import CompiledTap
from hypocenter.tap.live import LiveMode
from hypocenter.tap.modules import ORDER, ModuleTap
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.operator_calls import OperatorCalls
from hypocenter.tap.ops import OpTap
from hypocenter.tap.parameters import parameter_readings
from hypocenter.tap.placement import Wrappers
from hypocenter.tap.probe import ProbeTap
from hypocenter.tap.spread.activations import SpreadOfActivations
from hypocenter.tap.spread.parameters import SpreadOfParameters
from hypocenter.tap.spread.where import Where
from hypocenter.tap.tensors import TensorKeeper
from hypocenter.tap.wanted import is_wanted

TENSORS_BUDGET_BYTES = 4 << 30  # of files that level tensors may write per rank
_SHOWN_STATE = 8  # tensors of state per parameter; more is an optimizer whose rule is not known


class UntracedReducer:
    """A reducer whose own kernels are not seen by the dispatch modes that are on."""

    def __init__(self, config: Config, warn: Callable[[str], None] | None = None) -> None:
        self._reducer = TorchReducer(histogram=config.histogram, sketch=config.sketch, warn=warn)

    def add(self, tensor: torch.Tensor, where: Where | None = None, /) -> int | None:
        """Queue a tensor; a part of one is sketched as such, or not at all where its place in it is not known."""
        place, sketch = None, True
        if where is not None and where.is_part:
            sketch = where.offset is not None
            place = None if where.offset is None else Placement(shape=where.shape, offset=where.offset)
        if not torch._C._len_torch_dispatch_stack():
            return self._reducer.add(tensor, place, sketch=sketch)
        with _disable_current_modes():
            return self._reducer.add(tensor, place, sketch=sketch)

    def drain(self) -> list[Summary]:
        """Return the summaries, indexed by ticket."""
        with _disable_current_modes():
            return self._reducer.drain()


class Levels:
    """Switches taps on and off at micro-batch boundaries and collects their rows at updates."""

    def __init__(
        self,
        config: Config,
        names: NameMap,
        clock: Clock,
        warn: Callable[[str], None],
        rank_directory: Callable[[], Path],
        place: Callable[[], Place] = Place,
    ) -> None:
        self._config, self._names, self._clock, self._warn = config, names, clock, warn
        self._rank_directory = rank_directory
        self._wrappers = Wrappers()
        self._of_parameters = SpreadOfParameters(names, self._wrappers, place)
        self._of_activations = SpreadOfActivations(self._of_parameters, names, place)
        self._level = LEVELS.index(config.level)
        self._due = schedule.parse(config.schedule)
        self._params_due = schedule.parse(config.param_schedule)
        self._probes = ProbeTap(names, UntracedReducer(config, warn), clock, warn)
        self._modules: ModuleTap | None = None
        self._compiled: CompiledTap | None = None
        self._keeper: TensorKeeper | None = None
        self._ops: OpTap | None = None
        self._live: LiveMode | None = None
        self._updates: UpdateTensors | None = None
        self._undo: list[Callable[[], None]] = []

    def attach(self) -> Callable[[], None]:
        """Set the hooks that the level needs; returns the undo."""
        self._undo.append(self._probes.attach())
        if self._level >= LEVELS.index("modules") or self._config.trace_batches:
            self._modules = ModuleTap(
                self._names, UntracedReducer(self._config, self._warn), self._clock, self._config, self._warn
            )
            self._modules.spread = self._of_activations
            self._undo += [self._wrappers.attach(), self._modules.attach()]
        if self._level >= LEVELS.index("modules"):
            self._compiled = CompiledTap(self._names, self._clock, self._config, self._warn)
            self._undo.append(self._compiled.attach())
        if self._level >= LEVELS.index("ops"):
            context = OpContext(self._names.module_name)
            self._ops = OpTap(context, UntracedReducer(self._config, self._warn), self._clock)
            self._ops.calls = OperatorCalls()
            self._undo.append(context.attach())
            self._live = LiveMode(self._ops, self._warn)

        if self._config.level == "tensors":
            self._updates = UpdateTensors(
                self._config, self._names, self._rank_directory, self._warn, TENSORS_BUDGET_BYTES
            )

        def undo() -> None:
            self.end_microbatch()
            self._keep_calls()
            for each in reversed(self._undo):
                each()

        return undo

    @property
    def looks_at_rules(self) -> bool:
        """Whether `before_rule` does anything."""
        return self._updates is not None

    def before_rule(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Keep what an optimizer's own rule is about to change."""
        if self._updates is not None and self._due(step):
            self._updates.before(optimizer, step)

    def after_rule(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep what an optimizer's own rule has changed."""
        if self._updates is not None:
            self._updates.after(optimizer)

    def on_root(self, module: torch.nn.Module) -> None:
        """Warn that torch.compile'd modules run eagerly at level ops: a new outermost module was called."""
        if type(module).__name__ == "OptimizedModule" and self._live is not None:
            self._warn("level ops runs torch.compile'd modules eagerly: torch compiles nothing under a dispatch mode")

    def begin_microbatch(self) -> None:
        """Switch the taps on if this step is due: an outermost training call begins."""
        if self._modules is None and self._live is None:
            return
        due = self._due(self._clock.step)
        if self._modules is not None:
            traced = self._clock.batch in self._config.trace_batches
            self._modules.enabled = (due and self._level >= LEVELS.index("modules")) or traced
            if self._config.level == "tensors" and self._keeper is None:
                self._keeper = TensorKeeper(self._rank_directory(), budget_bytes=TENSORS_BUDGET_BYTES, warn=self._warn)
                self._modules.keeper = self._keeper
        if self._live is not None and due:
            self._live.enter()

    def before_backward(self, seeds: Sequence[torch.Tensor | None]) -> None:
        """Begin to follow backward, which starts from these gradients (None where torch makes one)."""
        if self._ops is not None:
            self._ops.flow.start(seeds)

    def end_microbatch(self) -> None:
        """Stop following ops: the micro-batch's backward is over."""
        if self._ops is not None:
            self._ops.flow.end()
        if self._live is not None:
            self._live.leave()

    def forget(self) -> None:
        """Forget what modules computed in this step so far: it was no training."""
        if self._modules is not None:
            self._modules.forget()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Switch the taps off while a replay runs."""
        enabled, recording = self._modules is not None and self._modules.enabled, self._clock.recording
        if self._modules is not None:
            self._modules.enabled = False
        self._clock.recording = False
        try:
            yield
        finally:
            self._clock.recording = recording
            if self._modules is not None:
                self._modules.enabled = enabled

    def _keep_calls(self) -> None:
        """Put the operators that each module called among the run's facts, once these are there."""
        noted = self._ops.calls if self._ops is not None else None
        if (
            self._ops is not None
            and noted is not None
            and noted.calls
            and add_calls(self._rank_directory(), noted.calls)
        ):
            self._ops.calls = None

    def collect(self, step: int, optimizers: Sequence[Any]) -> list[Reading]:
        """Return all rows of the step so far, in execution order."""
        if self._ops is not None:
            self._keep_calls()
        rows = self._probes.collect(step) if self._probes.calls or self._probes.pending else []
        if self._modules is None and not rows:  # at sentinel
            return rows
        for tap in (self._modules, self._compiled, self._ops):
            if tap is not None:
                rows += tap.collect(step)
        if self._modules is not None:
            self._modules.enabled = False
        if self._keeper is not None:
            self._keeper.flush(step)
        if self._level >= LEVELS.index("modules") and self._params_due(step):
            rows += parameter_readings(
                self._names, optimizers, UntracedReducer(self._config), step, clock=self._clock, config=self._config,
                spread=self._of_parameters,
            )  # fmt: skip
        return sorted(rows, key=ORDER)


# `tensors/step-000012/update-0.safetensors` holds of the first optimizer that steps, for each parameter: `value|NAME`,
# `grad|NAME` (unscaled and clipped, as the rule gets it) and `state|exp_avg|NAME` before, and `after|NAME` and `after-
# state|exp_avg|NAME` after it. Under `update` in the metadata, as JSON: class of the optimizer, options of each group
# at this step, and names. Where a framework trains copies of the parameters in float32, these are what is held.
class UpdateTensors:
    """Copies parameters, gradients and state to the host at updates; writes one file per optimizer and step.

    Args:
        folder: of this rank.
        budget_bytes: nothing beyond it is kept in one run.
    """

    def __init__(
        self, config: Config, names: NameMap, folder: Callable[[], Path], warn: Callable[[str], None], budget_bytes: int
    ) -> None:
        self._config, self._names, self._folder, self._warn = config, names, folder, warn
        self._left_bytes = budget_bytes
        self._held: dict[str, Tensor] | None = None
        self._step = self._number = -1

    def before(self, optimizer: Optimizer, step: int) -> None:
        """Copy parameters, gradients and state to the host before the rule is applied; gradients are final."""
        self._held = None
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        wanted = self._wanted(optimizer)
        n_bytes = sum(3 * one.tensor.numel() * one.tensor.element_size() for one in wanted)
        if 2 * n_bytes > self._left_bytes:
            self._warn("parameters and state at updates are no longer kept: the size budget is used up")
            self._left_bytes = 0
            return
        held: dict[str, Tensor] = {}
        with torch.no_grad():
            for one in wanted:
                self._put(held, "value", one, one.tensor)
                if one.tensor.grad is not None:
                    self._put(held, "grad", one, one.tensor.grad)
                self._put_state(held, "state", one, optimizer)
        self._held = held

    def after(self, optimizer: Optimizer) -> None:
        """Copy parameters and state to the host after the rule was applied, and write the file."""
        held, self._held = self._held, None
        if not held:
            return
        with torch.no_grad():
            for one in self._wanted(optimizer):
                self._put(held, "after", one, one.tensor)
                self._put_state(held, "after-state", one, optimizer)
        self._left_bytes -= sum(tensor.nbytes for tensor in held.values())
        self._write(held, self._about(optimizer))

    def _wanted(self, optimizer: Optimizer) -> list[Trained]:
        return [one for one in trained(optimizer, self._names) if self._is_wanted(one.name)]

    def _is_wanted(self, name: str) -> bool:
        return is_wanted((name, name.rpartition(".")[0]), self._config)

    def _put(self, held: dict[str, Tensor], what: str, one: Trained, values: Tensor) -> None:
        here = _here(values)
        if here is None:
            return
        for name, part in one.parts(self._names, here):
            if part.numel():
                held[f"{what}|{name}"] = torch.empty(part.shape, dtype=part.dtype, device="cpu").copy_(part)

    def _put_state(self, held: dict[str, Tensor], what: str, one: Trained, optimizer: Optimizer) -> None:
        state = optimizer.state.get(one.tensor)  # .get: a defaultdict must not grow
        if not isinstance(state, Mapping) or len(state) > _SHOWN_STATE:
            return
        for key, value in state.items():
            if isinstance(value, Tensor) and value.numel() == one.tensor.numel() != 1:
                self._put(held, f"{what}|{key}", one, value)
            elif isinstance(value, Tensor) and value.numel() == 1:
                for name, _ in one.parts(self._names, one.tensor.detach()):
                    held[f"{what}|{key}|{name}"] = value.detach().to("cpu", copy=True).reshape(())
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                held[f"{what}|{key}|{one.name}"] = torch.tensor(float(value), dtype=torch.float64, device="cpu")

    def _about(self, optimizer: Optimizer) -> dict[str, Any]:
        kind = type(optimizer)
        bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base is not object]
        groups: list[dict[str, Any]] = []
        members = trained(optimizer, self._names)
        for index, group in enumerate(optimizer.param_groups):
            options = {str(key): found for key, found in _options(group)}
            names = [name for one in members if one.group == index for name in _names(one, self._names)]
            groups.append({"options": options, "parameters": names})
        scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which take it out themselves
        skips = getattr(optimizer, "found_inf", None)
        return {
            "kind": kind.__name__,
            "bases": bases,
            "groups": groups,
            "grad_scale": float(scale) if isinstance(scale, Tensor) else 1.0,
            "is_skipped": bool(skips.item()) if isinstance(skips, Tensor) else False,
        }

    def _write(self, held: dict[str, Tensor], about: dict[str, Any]) -> None:
        folder = self._folder() / "tensors" / f"step-{self._step:06d}"
        path = folder / f"update-{self._number}.safetensors"
        try:
            from safetensors.torch import save_file  # the training process must not need it at other levels

            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            save_file(held, part, metadata={"update": msgspec.json.encode(about).decode(), "step": str(self._step)})
            part.replace(path)  # a kill leaves a whole file or none
        except Exception as error:
            self._warn(f"what the optimizer did cannot be written: {error!r}")


def _options(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if key == "params" or type(key) is not str:
            continue
        if isinstance(value, Tensor) and value.numel() == 1:
            yield key, float(value)
        elif (kept := plain(value)) is not NOT_PLAIN:
            yield key, kept


def _names(one: Trained, names: NameMap) -> list[str]:
    return [name for name, _ in one.parts(names, one.tensor.detach().reshape(-1))]


def _here(tensor: Tensor) -> Tensor | None:
    """Return the dense values of a tensor on this rank; None where there are none."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # type: ignore[operator]
    if tensor.is_meta:
        return None
    tensor = tensor.detach()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
