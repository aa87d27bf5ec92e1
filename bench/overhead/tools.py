"""The tools that are timed: context managers that, given a workload and a folder to write to, yield the step to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.overhead.workloads import SCALED, Workload

Attach = Callable[[Workload, Path], AbstractContextManager[Callable[[], float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A row of the table.

    `budget` is the largest allowed ratio to plain training, None for tools that are not ours; `comes_off` says that
    leaving the context leaves plain training behind. `baseline` is what takes turns with it instead of plain training.
    """

    title: str
    attach: Attach
    budget: float | None = None
    comes_off: bool = True
    needs_msprobe: bool = False
    is_cheap: bool = False
    is_of_scaler: bool = False  # timed on the workloads with a loss scaler only
    baseline: Attach | None = None

    def n_pairs(self, n_wanted: int) -> int:
        """How many pairs tell it from plain training: a cost of one per cent takes more of them than one of fifty."""
        return n_wanted if self.is_cheap else max(2, n_wanted // 3)


@contextmanager
def _plain(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
    yield workload.step


def _hypocenter(level: str) -> Attach:
    @contextmanager
    def attach(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
        import hypocenter

        # audits are free for a second and 0.25 % of the time from then on: not what a step costs (bench/step has it)
        with hypocenter.watch(workload.model, workload.optimizer, level=level, audit="never", out=str(folder / "run")):
            yield workload.step

    return attach


@contextmanager
def _without_diary(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
    """All of level sentinel but the loss-scale diary."""
    from hypocenter.session import observers
    from hypocenter.session.observers.diary import Diary

    everything = observers.OBSERVERS
    observers.OBSERVERS = tuple(observer for observer in everything if observer is not Diary)
    try:
        with _hypocenter("sentinel")(workload, folder) as step:
            yield step
    finally:
        observers.OBSERVERS = everything


@contextmanager
def _debug_underflow_overflow(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(workload.model)
    yield workload.step


@contextmanager
def _detect_anomaly(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
    import torch

    with torch.autograd.set_detect_anomaly(True):
        yield workload.step


def _debug_mode(*, with_hashes: bool) -> Attach:
    @contextmanager
    def attach(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
        from contextlib import nullcontext

        from torch.utils._debug_mode import DebugMode

        def step() -> float:  # a mode a step, as its log grows without bound
            with DebugMode(record_nn_module=True), DebugMode.log_tensor_hashes() if with_hashes else nullcontext():
                return workload.step()

        yield step

    return attach


def _msprobe(level: str) -> Attach:
    @contextmanager
    def attach(workload: Workload, folder: Path) -> Iterator[Callable[[], float]]:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(task="statistics", level=level, dump_path=str(folder))

        def step() -> float:
            debugger.start(model=workload.model)
            loss = workload.step()
            debugger.stop()
            debugger.step()
            return loss

        yield step

    return attach


TOOLS = {
    "plain": Tool(title="plain again (the noise of this table)", attach=_plain, is_cheap=True),
    "sentinel": Tool(title="**hypocenter sentinel**", attach=_hypocenter("sentinel"), budget=1.02, is_cheap=True),
    "diary": Tool(
        title="of which the loss-scale diary (to sentinel without it)",
        attach=_hypocenter("sentinel"),
        baseline=_without_diary,
        budget=1.02,
        is_cheap=True,
        is_of_scaler=True,
    ),
    "modules": Tool(title="**hypocenter modules**, every step", attach=_hypocenter("modules"), budget=1.30),
    "ops": Tool(title="**hypocenter ops**, every step", attach=_hypocenter("ops"), budget=4.0),
    "duo": Tool(
        title="transformers `DebugUnderflowOverflow` (forward only)", attach=_debug_underflow_overflow, comes_off=False
    ),
    "anomaly": Tool(title="`torch.autograd.detect_anomaly` (NaN in backward only)", attach=_detect_anomaly),
    "debug-mode": Tool(
        title="torch `DebugMode` (ops and modules, no statistics)", attach=_debug_mode(with_hashes=False)
    ),
    "debug-mode-hash": Tool(title="torch `DebugMode` with tensor hashes", attach=_debug_mode(with_hashes=True)),
    "msprobe-L0": Tool(
        title="msprobe statistics L0 (modules)", attach=_msprobe("L0"), comes_off=False, needs_msprobe=True
    ),
    "msprobe-mix": Tool(
        title="msprobe statistics mix (modules and APIs)", attach=_msprobe("mix"), comes_off=False, needs_msprobe=True
    ),
}

SCALED_TOOLS = ("plain", "sentinel", "diary")


def tools_for(workload: str) -> tuple[str, ...]:
    """The tools that are timed on a workload when none is asked for."""
    return SCALED_TOOLS if workload in SCALED else tuple(name for name, tool in TOOLS.items() if not tool.is_of_scaler)
