"""What can be told of an exception that ends the program: where it came from, and of a bad index the value and the row.

Called in the dying process, before the program's own handler of exceptions prints it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from hypocenter.detect.rank_words import IN_WORDS, PHASES
from hypocenter.diagnose.evidence import Evidence, OpFacts
from hypocenter.nouns import Phase
from hypocenter.record.whereabouts import WherePhase
from hypocenter.replay.adjudicate import tensor_facts
from hypocenter.replay.bad_index import BadIndex, bad_index, same_place
from hypocenter.replay.case import is_finite
from hypocenter.replay.failed_call import FailedCall, failed_call, frames_of
from hypocenter.session.device_errors import DeviceError, device_error
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.last_words import one_line, user_place
from hypocenter.tap.call_site import CALLS
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap
from hypocenter.tap.out_of_memory import is_out_of_memory
from hypocenter.tap.source import is_library, source_of, user_frame
from hypocenter.tap.tree import tensors

_FRAMES_TOLD = 6
_SHOWN_INPUTS = 6


def phase_of(error: BaseException, noted: WherePhase) -> WherePhase:
    """Tell from its traceback where in a step an exception was raised; `noted` where it does not show.

    What was noted may be later than the exception: hooks run on its way out.
    """
    for frame in reversed(frames_of(error.__traceback__)):
        code = frame.f_code
        if code in CALLS:
            return "forward"
        if is_library(code.co_filename) and code.co_name in ("backward", "_engine_run_backward"):
            return "backward"
        if code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
            return "update"
    return "outside" if noted in ("forward", "backward", "update", "check") else noted


@dataclass(frozen=True, slots=True, kw_only=True)
class Coroner:
    """Writes the evidence of the exception that ends the program.

    Args:
        folder: of the rank's bundles.
        rank: (this rank, how many there are).
    """

    names: NameMap
    clock: Clock
    folder: Callable[[], Path]
    rank: Callable[[], tuple[int, int]]

    def examine(self, error: BaseException, phase: WherePhase) -> list[torch.Tensor]:
        """Write what is known of the exception, then find out more, and write that.

        Returns:
            What the call that raised was given and is not finite.
        """
        if not isinstance(error, Exception):
            return []  # the program, or its user, wanted to end
        rank, world_size = self.rank()
        known = Evidence(
            id=f"step-{self.clock.step_now:06d}-crash", trigger="crash", step=self.clock.step_now,
            microbatch=self.clock.microbatch, rank=rank, world_size=world_size,
            facts={"type": type(error).__name__, "text": one_line(error), "phase": PHASES.get(phase, "")},
            path=tuple(self._frames(error)),
        )  # fmt: skip
        broken = device_error(error)
        if is_out_of_memory(error):
            known = replace(known, facts={**known.facts, "memory": 1.0})
        if broken is not None:
            known = replace(known, facts={**known.facts, "device": broken.kind, "text": broken.text})
        write_evidence(self.folder(), known)
        if is_out_of_memory(error) or broken is not None:
            return []  # nothing can be done again where there is no memory, or no device
        call = failed_call(error, may_call=lambda module: world_size == 1 or _is_of_torch(module))
        if call is None:
            return []
        write_evidence(self.folder(), self._of_call(known, error, call, PHASES.get(phase, "forward")))
        return [t for _, t in tensors((call.args, call.kwargs)) if t.is_floating_point() and not is_finite(t)]

    def first_seen(self, what: DeviceError, phase: WherePhase) -> str:
        """Write evidence of a device that gives no more results, which we are the first to hear of; return its id."""
        rank, world_size = self.rank()
        frame, step = user_frame(sys._getframe()), self.clock.step_now
        source = None if frame is None else source_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        noticed = OpFacts(index=0, op="", phase=PHASES.get(phase) or "forward", site="", source=source)
        known = Evidence(
            id=f"step-{step:06d}-device-error", trigger="crash", step=step, microbatch=self.clock.microbatch,
            rank=rank, world_size=world_size, path=(noticed,) if source is not None else (),
            facts={"type": what.type, "text": what.text, "device": what.kind, "seen_in": IN_WORDS[phase]},
        )  # fmt: skip
        return write_evidence(self.folder(), known)

    def _frames(self, error: BaseException) -> list[OpFacts]:
        """Return the program's own frames, innermost first, without those of libraries."""
        found: list[OpFacts] = []
        trace = error.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if not is_library(name) and not name.startswith("<"):
                source = source_of(name, trace.tb_lineno, trace.tb_frame.f_code.co_name)
                found.append(OpFacts(index=0, op="", phase="forward", site="", source=source))
            trace = trace.tb_next
        return found[::-1][:_FRAMES_TOLD]

    def _of_call(self, known: Evidence, error: BaseException, call: FailedCall, phase: Phase) -> Evidence:
        named = [
            (call.argument_name(key), value) for key, value in (*enumerate(call.args), *call.kwargs.items())
        ]  # fmt: skip
        inputs = [(f"{name}{suffix}", t) for name, value in named for suffix, t in tensors(value)][:_SHOWN_INPUTS]
        module, place = self._module(error), user_place(error.__traceback__)
        origin = OpFacts(
            index=0, op=call.name, phase=phase, site=self._name(module) or ("loss" if phase == "loss" else ""),
            module=type(module).__name__ if module is not None else "", port="out[0]",
            source=source_of(place[0].f_code.co_filename, place[1], place[0].f_code.co_name) if place else None,
            inputs=tuple(tensor_facts(t.detach(), name) for name, t in inputs),
            scalars={name: value for name, value in named if isinstance(value, (bool, int, str))},
        )  # fmt: skip
        known = replace(known, origin=origin)
        try:
            found = bad_index(call)
        except TimeoutError:
            return known
        return known if found is None else self._of_index(known, found, _batch(error))

    def _of_index(self, known: Evidence, found: BadIndex, batch: dict[str, Any]) -> Evidence:
        value = found.values[0]
        facts: dict[str, float | str] = {
            **known.facts, "index": float(value), "argument": found.argument, "n_bad": float(len(found.values)),
            "at": str(list(found.at[0])),
        }  # fmt: skip
        if found.size is not None:
            facts["size"] = float(found.size)
        place = same_place(found.tensor, batch) or _holder(batch, value)
        if place is None:
            return replace(known, facts=facts)
        name, tensor = place
        bad = torch.isin(tensor, torch.tensor(found.values, dtype=tensor.dtype, device="cpu")).nonzero().tolist()
        rows = sorted({int(at[0]) for at in bad}) if tensor.dim() else []
        facts |= {"batch": _plain(name), "batch_at": str(bad[0])}
        return replace(known, facts=facts, samples=tuple(rows), n_samples=tensor.shape[0] if tensor.dim() else 0)

    def _module(self, error: BaseException) -> nn.Module | None:
        calls = [frame for frame in frames_of(error.__traceback__) if frame.f_code in CALLS]
        module = calls[-1].f_locals.get("self") if calls else None
        return module if isinstance(module, nn.Module) else None

    def _name(self, module: nn.Module | None) -> str:
        return "" if module is None else self.names.module_name(module) or ""


def _plain(name: str) -> str:
    """Write the name of a value in a batch as a program does: `[batch][labels]` becomes batch[labels]."""
    head, _, rest = name.removeprefix("[").partition("]")
    return head + rest


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _batch(error: BaseException) -> dict[str, Any]:
    """Return what the outermost module was called with, or the variables of the program's frame outside all modules."""
    frames = frames_of(error.__traceback__)
    root = next((frame for frame in frames if frame.f_code in CALLS), None)
    if root is None:
        own = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
        return dict(own[-1].f_locals) if own else {}
    return _arguments(root)


def _arguments(call: FrameType) -> dict[str, Any]:
    module, args = call.f_locals.get("self"), tuple(call.f_locals.get("args") or ())
    kwargs = dict(call.f_locals.get("kwargs") or {})
    try:
        names = list(inspect.signature(getattr(module, "forward")).parameters)  # noqa: B009
    except (TypeError, ValueError):
        names = []
    return {names[i] if i < len(names) else f"in[{i}]": value for i, value in enumerate(args)} | kwargs


def _holder(batch: dict[str, Any], value: int) -> tuple[str, torch.Tensor] | None:
    """Return the only integer tensor of the batch that holds a bad value, if it does so in some rows; else None."""
    found: list[tuple[str, torch.Tensor]] = []
    for name, tensor in tensors(batch):
        if tensor.dtype in (torch.int64, torch.int32) and tensor.dim() and bool((tensor == value).any()):
            found.append((name, tensor))
    if len(found) != 1:
        return None
    rows = (found[0][1] == value).reshape(found[0][1].shape[0], -1).any(dim=1)
    return found[0] if not bool(rows.all()) or len(rows) == 1 else None
