"""Feed a live model's modules with what a baseline's took in, one by one, so that nothing upstream can hide an error.

The model is called once with the recorded inputs. Just before each module runs, the tensors among its arguments are
replaced by the baseline's recorded ones (what is no tensor stays the caller's own), and what it gives is compared with
what the baseline's gave. With recorded output gradients its backward is run by itself too. What is recorded as the
gradient of a tensor is that of all its uses, so this is held against the gradients of

- the module's own parameters, where no other module shares them and the step has one micro-batch with one call, up to
  one factor common to all (clipping);
- its input, where it follows another module in an `nn.Sequential`: nothing else uses it there.

The floor is what rounding does to the module: the same call with inputs off by an ulp, under `Rounding`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hypocenter.compare.isolation.isolated import Isolated, judged, ranked, relative
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.errors import ConfigError, NoRecordingError
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.replay.calibration import SAMPLES, UNIT, Rounding, off_by_one_rounding
from hypocenter.replay.one_module import array_of, executed, fed, ports, tensor_of
from hypocenter.tap.names import NameMap, class_name
from hypocenter.tap.tree import replace_tensors

_SMALLEST = 0.25  # of a rounding: floor of what only copies


def isolate(
    model: nn.Module, recording: RecordedRun | Path | str, *, sites: Iterable[str] | None = None, step: int = 0,
    microbatch: int = 0, call: Callable[[], Any] | None = None, load_weights: bool = False,
) -> list[Isolated]:  # fmt: skip
    """Which module of a live model has an error of its own; innermost first, then the worst.

    Args:
        model: the candidate, in the mode in which it trains (dropout off); parameters and gradients stay as they are.
        recording: the baseline, of level tensors.
        sites: names of the modules to judge; all that were recorded when not given.
        step, microbatch: of the recording.
        call: runs the model once, when it cannot be called with the recorded inputs alone; gradients must be enabled
            in it for backward to be judged.
        load_weights: let the modules have the recorded parameters meanwhile, so that only code can differ.

    Raises:
        NoRecordingError: no values were recorded there.
        ConfigError: no module of the model has a recorded counterpart, or it cannot be called with what was recorded.
    """
    run = recording if isinstance(recording, RecordedRun) else open_run(recording)
    values = RecordedValues(run)
    if (step, microbatch) not in values.batches():
        raise NoRecordingError(
            f"no values were recorded at step {step}, micro-batch {microbatch}", where=str(run.directory),
            why="modules are isolated by what the baseline's took in and gave", fix="record it with --level tensors",
        )  # fmt: skip
    bench = _Bench(model, values, step, microbatch, frozenset(sites) if sites is not None else None)
    with bench.weights() if load_weights else contextlib.nullcontext(), bench.attached():
        bench.run(call)
    return ranked(bench.results())


class _Bench:
    """Run the modules of a live model with recorded inputs, one after the other."""

    def __init__(
        self, model: nn.Module, values: RecordedValues, step: int, microbatch: int, sites: frozenset[str] | None
    ) -> None:
        self._model, self._values, self._step, self._microbatch = model, values, step, microbatch
        names = NameMap()
        names.add_root(model)
        self._modules = {
            name: module
            for name, module in names.modules()
            if (sites is None or name in sites) and values.site(name, step, microbatch)
        }
        names.close()
        if not self._modules:
            raise ConfigError(
                "no module of the model is in the recording", where="hypocenter.isolate",
                why="modules are found by name", fix="give the model that was recorded, under the same names",
            )  # fmt: skip
        self._only_users = _only_users(model)
        holders = Counter(id(param) for module in model.modules() for param in module._parameters.values())
        self._shared = {key for key, n_holders in holders.items() if n_holders > 1}
        self._calls: dict[str, int] = {}
        self._results: list[Isolated] = []
        self._weight_gaps: list[tuple[int, Tensor, Tensor, str]] = []
        self._is_busy = False  # a module is run again: what it calls is left alone

    def results(self) -> list[Isolated]:
        """Return what was found, in the order of the calls."""
        return self._with_weight_gradients()

    @contextlib.contextmanager
    def attached(self) -> Generator[None, None, None]:
        """Have hooks on all modules inside this block."""
        handles: list[Any] = []
        for name, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def weights(self) -> Generator[None, None, None]:
        """Let the modules have the recorded parameters inside this block."""
        last = self._values.last_microbatch(self._step)
        kept: list[tuple[Tensor, Tensor]] = []
        try:
            with torch.no_grad():
                for name, module in self._modules.items():
                    stored = self._values.site(name, self._step, last if last is not None else self._microbatch)
                    for key, param in module._parameters.items():
                        if param is not None and key in stored and stored[key].shape == tuple(param.shape):
                            kept.append((param, param.detach().clone()))
                            param.copy_(tensor_of(stored[key], param))
            yield
        finally:
            with torch.no_grad():
                for param, before in reversed(kept):
                    param.copy_(before)

    def run(self, call: Callable[[], Any] | None) -> None:
        """Call the model once."""
        if call is not None:
            call()
            return
        args, kwargs = self._root_inputs()
        try:
            with torch.enable_grad():
                self._model(*args, **kwargs)
        except Exception as error:
            if not self._results:
                raise ConfigError(
                    "the model cannot be called with what was recorded", where="hypocenter.isolate", why=str(error),
                    fix="give call=lambda: model(...): a call as in training",
                ) from error  # fmt: skip

    def _root_inputs(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        args: dict[int, Tensor] = {}
        kwargs: dict[str, Tensor] = {}
        like = next(self._model.parameters(), torch.empty(0, device="cpu"))
        for key, stored in self._values.site("", self._step, self._microbatch).items():
            name = key[3:-1]
            if key.startswith("in[") and key.endswith("]") and "[" not in name:
                tensor = tensor_of(stored, like, keep_dtype=True)
                if name.isdigit():
                    args[int(name)] = tensor
                else:
                    kwargs[name] = tensor
        if sorted(args) != list(range(len(args))):
            raise ConfigError(
                "the model took in more than tensors", where="hypocenter.isolate",
                why="only tensors are recorded", fix="give call=lambda: model(...): a call as in training",
            )  # fmt: skip
        return [args[at] for at in sorted(args)], kwargs

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if self._is_busy:
                return None
            call = self._calls.get(name, 0)
            stored = self._values.site(name, self._step, self._microbatch)
            return fed(args, kwargs, stored, call)

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._is_busy:
                return
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1
            self._is_busy = True
            try:
                self._judge(name, call, module, args, kwargs)
            except Exception as error:  # a module that cannot be run again is no reason to stop
                self._results.append(self._result(name, call, module, why=f"it cannot be run by itself: {error}"))
            finally:
                self._is_busy = False

        return hook

    def _judge(self, name: str, call: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        stored = self._values.site(name, self._step, self._microbatch)
        suffix = f"#{call}" if call else ""
        missing = [port for port, _ in ports(args, kwargs) if f"{port}{suffix}" not in stored]
        if missing:
            why = f"{missing[0]} was not recorded, or has another shape"
            self._results.append(self._result(name, call, module, why=why))
            return
        errors = self._trial(module, args, kwargs, stored, suffix, keep_weights=name)
        floors: dict[str, float] = {}
        for sample in range(SAMPLES):
            for port, gap in self._perturbed(module, args, kwargs, stored, suffix, sample).items():
                floors[port] = max(floors.get(port, 0.0), gap)
        for port, (error, dtype) in errors.items():
            floor = max(floors.get(port, 0.0), _SMALLEST * UNIT.get(dtype, UNIT[torch.float32]))
            self._results.append(self._result(name, call, module, port=port, error=error, floor=floor, how="executed"))
        if not errors:
            self._results.append(self._result(name, call, module, why="its outputs were not recorded"))

    def _result(
        self, name: str, call: int, module: nn.Module, *, port: str = "", error: float | None = None,
        floor: float | None = None, how: str = "", why: str = "",
    ) -> Isolated:  # fmt: skip
        return Isolated(
            site=name, candidate_site=name, kind=class_name(module), port=port, call=call, step=self._step,
            microbatch=self._microbatch, error=error, floor=floor, verdict=judged(error, floor), how=how, why=why,
            order=len(self._results),
        )  # fmt: skip

    def _trial(
        self, module: nn.Module, args: Any, kwargs: Any, stored: Mapping[str, Stored], suffix: str, *,
        keep_weights: str = "",
    ) -> dict[str, tuple[float, torch.dtype]]:  # fmt: skip
        """Run a module; return the error of each output and input gradient against the baseline's."""
        outputs, gradients, own = executed(module, args, kwargs, stored, suffix)
        found: dict[str, tuple[float, torch.dtype]] = {}
        if id(module) not in self._only_users:
            gradients = {}
        for port, tensor in {**outputs, **gradients}.items():
            right = stored.get(f"{port}{suffix}")
            if right is not None and right.shape == tuple(tensor.shape):
                found[port] = relative(array_of(tensor), right.values()), tensor.dtype
        if keep_weights and self._has_one_batch() and not suffix and "in[0]#1" not in stored:
            for key, gradient in own.items():
                if id(module._parameters[key]) in self._shared:
                    continue
                right = stored.get(f"{key}.grad")
                if right is not None and right.shape == tuple(gradient.shape):
                    self._weight_gaps.append((len(self._results), gradient, tensor_of(right, gradient), f"{key}.grad"))
        return found

    def _perturbed(
        self, module: nn.Module, args: Any, kwargs: Any, stored: Mapping[str, Stored], suffix: str, sample: int
    ) -> dict[str, float]:
        """Return how far rounding of its inputs moves outputs and input gradients."""
        plain, plain_gradients, _ = executed(module, args, kwargs, stored, suffix)

        def off(tensor: Tensor) -> Tensor:
            if tensor.dtype not in UNIT:
                return tensor
            generator = torch.Generator(tensor.device).manual_seed(sample)
            return off_by_one_rounding(tensor.detach(), generator).requires_grad_(tensor.requires_grad)

        with torch.no_grad():
            moved_args, moved_kwargs = replace_tensors(tuple(args), off), replace_tensors(kwargs, off)
        with Rounding(sample):
            outputs, gradients, _ = executed(module, moved_args, moved_kwargs, stored, suffix)
        pairs = {**plain, **plain_gradients}, {**outputs, **gradients}
        return {
            port: relative(array_of(pairs[1][port]), array_of(tensor))
            for port, tensor in pairs[0].items()
            if port in pairs[1]
        }

    def _has_one_batch(self) -> bool:
        return self._values.last_microbatch(self._step) == 0

    def _with_weight_gradients(self) -> list[Isolated]:
        """Judge weight gradients last: clipping has scaled all recorded ones by one factor, the median of all."""
        scales = [
            float((right.double() * own.double()).sum() / own.double().square().sum())
            for _, own, right, _ in self._weight_gaps
            if float(own.double().square().sum()) > 0
        ]
        scale = float(np.median(scales)) if scales else 1.0
        found = list(self._results)
        for at, own, right, port in self._weight_gaps:
            if at >= len(self._results):
                continue
            like = self._results[at]
            error = relative(array_of(own) * scale, array_of(right))
            others = [one.floor for one in self._results if one.site == like.site and one.floor is not None]
            floor = max([*others, UNIT.get(own.dtype, UNIT[torch.float32])])
            found.append(replace(like, port=port, error=error, floor=floor, verdict=judged(error, floor)))
        return _worst_of_each(found)


def _worst_of_each(found: list[Isolated]) -> list[Isolated]:
    """Return for each call the result of the port that says most."""
    best: dict[tuple[str, int], Isolated] = {}

    def says(one: Isolated) -> tuple[int, bool, float]:
        rank = {"own": 2, "cannot-tell": 0, "not-own": 1}[one.verdict]
        return rank, one.port.startswith("out"), one.times  # a forward that is wrong explains its gradients

    for one in found:
        key = one.site, one.call
        if key not in best or says(one) > says(best[key]):
            best[key] = one
    return list(best.values())


def _only_users(model: nn.Module) -> set[int]:
    """Return ids of modules that share their input with nothing: those after the first of an `nn.Sequential`."""
    found: set[int] = set()
    for module in model.modules():
        if type(module).forward is nn.Sequential.forward:
            found |= {id(child) for child in list(module.children())[1:]}
    return found
