"""Does a micro-batch again, in place: same inputs, random state, autocast, flags, buffers; everything restored.

The parameters are still the ones the step started from, because replays happen before the optimizer uses the gradients;
where their version counters tell that somebody has written to them since, there is no replay.
Gradients are taken with `torch.autograd.grad`, so no `.grad` changes and no accumulation hook (DDP, user) fires; what
backward writes by itself is kept from the run (`own_gradients`). Where all ranks replay together, their collectives go
over groups of ours (`own_groups`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.replay import alone, own_gradients, per_sample, sharded, torch_state
from hypocenter.replay.batch_rows import Rows
from hypocenter.replay.case import is_finite
from hypocenter.replay.deadline import Deadline
from hypocenter.replay.eagerly import Eagerly
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.in_bounds import kept_in_bounds
from hypocenter.replay.own_gradients import OwnBuffers, OwnParameters
from hypocenter.replay.own_groups import OwnCollectives, OwnGroups
from hypocenter.replay.own_writes import OwnWrites
from hypocenter.replay.user_operations import in_loss_code, outside_modules
from hypocenter.replay.whole import model as sharding
from hypocenter.replay.whole.model import Whole
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.handed_in import handed_in
from hypocenter.tap.lent import lending
from hypocenter.tap.names import NameMap
from hypocenter.tap.numerics import numerics_entered
from hypocenter.tap.op_context import OpContext, Outside
from hypocenter.tap.state import RngState, capture_rng, entered, restore_rng
from hypocenter.tap.tape import PLACEHOLDERS, Event, Microbatch, Tape, is_trainable_leaf
from hypocenter.tap.tree import replace_tensors, tensors

_REENTRANT = "heckpoint"  # torch: "Checkpointing is not compatible with .grad()", in several wordings


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a replay computed."""

    values: list[torch.Tensor] = field(default_factory=list)  # the roots that backward started from
    grads: list[torch.Tensor | None] = field(default_factory=list)  # per parameter asked for

    @property
    def finite(self) -> bool:
        """Whether loss and all gradients are finite."""
        return all(is_finite(t) for t in (*self.values, *self.grads) if t is not None)


class Replayer:
    """Execute micro-batches of one step's tape again."""

    def __init__(
        self,
        tape: Tape,
        paused: Callable[[], contextlib.AbstractContextManager[None]],
        is_parameter: Callable[[torch.Tensor], bool] = lambda _: False,
        deadline: Deadline | None = None,
    ) -> None:
        self._tape = tape
        self.deadline = deadline if deadline is not None else Deadline()
        """For all that is done again of one step, whoever asks for it."""
        self._paused = paused
        self.is_constant: Callable[[torch.Tensor], bool] = lambda _: True
        """Whether the infinities of an input are constants of the program (a mask), as far as is known."""
        self._is_named = is_parameter  # whether a tensor that is no `nn.Parameter` is one all the same
        self._accumulate = False  # gradients through .backward(): needed for reentrant checkpointing
        self._buffers_for_all = False  # a backward reads the `main_grad` of more parameters than the run's flags tell
        self.on_leaving: Callable[[], None] = lambda: None
        """Called after each replay, when what modules keep in Python is not put back yet."""
        self._has_hidden = False  # the last replay has kept some out of reach
        self._was_compiled = False  # something that was done again last ran as compiled code in the run
        self._own_groups: OwnGroups | None = None  # while all ranks replay together
        self._whole: Whole | None = None

    @contextlib.contextmanager
    def together(self, groups: OwnGroups) -> Generator[Whole, None, None]:
        """Let all ranks replay the same micro-batches in the same order inside this block.

        Gives what stands for sharded parameters in it; to be used once the ranks agree on it.
        """
        modules = [event.module for event in self._tape.events if event.module is not None]
        self._own_groups, self._whole = groups, Whole([])
        try:
            self._whole = Whole([m for m in modules if not sharding.why_not(m)])
        except Exception as error:  # another version of the framework: the other ranks are still to be told
            self._whole.why_not = f"its parameters cannot be made whole ({type(error).__name__}: {str(error)[:200]})"
        try:
            yield self._whole
        finally:
            self._own_groups = self._whole = None

    def renew(self, groups: OwnGroups) -> None:
        """Go on over other groups: the last ones were broken off on some rank. To be called inside of `together`.

        Raises:
            RuntimeError: another rank did not come.
        """
        self._own_groups = groups
        if self._whole is not None:
            self._whole.agree(groups, self._whole.limit_bytes)

    def parameters(self, names: NameMap) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters whose gradients a replay gives, with names; of sharded ones the full tensors."""
        named = names.parameters()
        return named if self._whole is None else self._whole.parameters(named, names.module_name)

    def needs_all(self) -> bool:
        """Return whether the modules of this step can compute only on all their ranks together."""
        return any(alone.why_not(event.function) for event in self._tape.events)

    def why_not(self, microbatch: Microbatch) -> str:
        """Return why this micro-batch cannot be replayed; "" if it can."""
        if microbatch.why_not:
            return microbatch.why_not
        events = self._tape.slice(microbatch)
        if self._whole is not None and self._whole.why_not:
            return self._whole.why_not
        refuses = alone.why_not if self._own_groups is None else alone.why_not_together
        why = next((why for _, event in events if (why := refuses(event.function))), "")
        return why or self._tape.mutated(events)

    @property
    def is_alone(self) -> bool:
        """Whether this rank may do a micro-batch again whenever it likes."""
        return self._own_groups is None

    def unlike_the_run(self, microbatch: Microbatch) -> str:
        """Return why this micro-batch, which was just done again, may differ in bits from the run; "" if it may not."""
        if self.is_in_fp8(microbatch):
            return "the run computed in FP8, with scales that have moved on since"
        return "what ran as compiled code is done again operator by operator" if self._was_compiled else ""

    def is_in_fp8(self, microbatch: Microbatch) -> bool:
        """Return whether something of it was computed in FP8."""
        return not microbatch.why_not and any(
            e.numerics is not None and e.numerics.is_fp8 for _, e in self._tape.slice(microbatch)
        )

    def needs_backward(self, microbatch: Microbatch) -> bool:
        """Return whether a forward that no backward follows would leave something behind: FSDP2's full parameters."""
        return any(alone.is_gathered(event.function) for _, event in self._tape.slice(microbatch))

    def why_other_bits(self, microbatch: Microbatch) -> str:
        """Return why it may differ in bits, even if only by another rounding; "" if it may not.

        Autocast casts a weight once for all calls in its region, and adds up their gradients in the lower format. Here
        each call has a region of its own.
        """
        if why := self.unlike_the_run(microbatch):
            return why
        cast: set[int] = set()
        for _, event in self._tape.slice(microbatch) if not microbatch.why_not else ():
            if any(enabled for _, enabled, _ in event.ambient.autocast):
                own = {id(p) for p in event.parameters}
                own |= {id(each.tensor) for each in event.externals if self._is_parameter(each.tensor)}
                if own & cast:
                    return "autocast cast weights once for several calls in the run, and casts them for each again"
                cast |= own
        return ""

    def computes_in(self, microbatch: Microbatch, dtype: torch.dtype) -> bool:
        """Return whether it ran under autocast to a format, or through a module with parameters in it.

        Autocast that a library has put into a model's `forward` (accelerate does) is seen by a replay of that.
        """
        if self.why_not(microbatch):
            return False
        is_wrapped = False
        for _, event in self._tape.slice(microbatch):
            if any(enabled and used == dtype for _, enabled, used in event.ambient.autocast):
                return True
            if event.module is not None:
                if any(p.dtype == dtype for p in event.module.parameters()):
                    return True
                is_wrapped = is_wrapped or "forward" in alone.callee(event.module).__dict__
        if not is_wrapped:
            return False
        seen = _FormatsSeen()
        events = [event for _, event in self._tape.slice(microbatch) if event.module is not None]
        parameter = next((p for event in events for p in event.module.parameters() if p.requires_grad), None)  # type: ignore[union-attr]
        if parameter is None:
            return False
        self.run(microbatch, [parameter], mode=seen)
        return dtype in seen.found

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        is_module_s = isinstance(tensor, torch.nn.Parameter)
        return is_module_s or (is_trainable_leaf(tensor) and self._is_named(tensor))

    def batch_tensors(self, microbatch: Microbatch) -> list[torch.Tensor]:
        """Return the inputs that came from outside (no parameters), in order of use."""
        found: list[torch.Tensor] = []
        for _, event in self._tape.slice(microbatch):
            found.extend(e.tensor for e in event.externals if not self._is_parameter(e.tensor))
        return found

    def named_inputs(self, microbatch: Microbatch) -> list[tuple[str, torch.Tensor]]:
        """Return the inputs from outside with the arguments they were passed as."""
        found: list[tuple[str, torch.Tensor]] = []
        for _, event in self._tape.slice(microbatch):
            for suffix, tensor in tensors((event.args, event.kwargs)):
                if PLACEHOLDERS.number(tensor) is None and not self._is_parameter(tensor):
                    name = suffix[len("[0]") :] or suffix
                    found.append((f"batch{name}" if event.module is not None else f"loss input{name}", tensor))
        return found

    def modes(self, microbatch: Microbatch) -> dict[torch.nn.Module, bool]:
        """Return for each module of its calls whether a replay has it in training mode."""
        found: dict[torch.nn.Module, bool] = {}
        for _, event in self._tape.slice(microbatch):
            module = event.module
            if module is not None:
                is_other = event.training is not None and module.training != event.training
                found.update((m, bool(event.training) if is_other else m.training) for m in module.modules())
        return found

    def run(
        self,
        microbatch: Microbatch,
        parameters: Sequence[torch.Tensor],
        *,
        mode: contextlib.AbstractContextManager[Any] | None = None,
        context: OpContext | None = None,
        around: contextlib.AbstractContextManager[Any] | None = None,
        rows: tuple[int, torch.Tensor] | None = None,
        seed_scale: float = 1.0,
        float32_at: tuple[str, int] | None = None,
        must_leave_no_trace: bool = False,
    ) -> Replayed:
        """Run forward, loss and backward of one micro-batch again.

        Args:
            parameters: whose gradients are wanted; where there are none, no backward is done.
            mode: entered around all of it (a dispatch mode that traces).
            context: told of the source line of each loss operation, and attached to module calls.
            around: entered around all of it (a remedy).
            rows: (batch size, indices): keep only these rows of every input whose first dimension is the batch.
            seed_scale: multiplies the gradient that backward starts from (1 / loss scale: as without scaling).
            float32_at: (file, line) of loss code whose operations get their operands in float32, autocast off.
            must_leave_no_trace: not where a module holds what cannot be put back: an open file, a Python generator.

        Raises:
            ReplayImpossible: with the reason.
        """
        if why := self.why_not(microbatch):
            raise ReplayImpossible(why)
        modules = _modules_of(event for _, event in self._tape.slice(microbatch))
        chosen = None if rows is None else Rows(n=rows[0], kept=rows[1])
        while True:
            if must_leave_no_trace and self._accumulate and (why := self._why_heard(modules, parameters)):
                raise ReplayImpossible(why)
            try:
                with self.deadline.one("plain" if mode is None else type(mode).__name__):
                    return self._run(
                        microbatch, parameters, mode, context, around, chosen, seed_scale, float32_at,
                        must_leave_no_trace=must_leave_no_trace,
                    )  # fmt: skip
            except (RuntimeError, AttributeError, ValueError) as error:
                if chosen is not None and not chosen.is_flat and not isinstance(error, AttributeError):
                    chosen = replace(chosen, is_flat=True)
                elif not self._does_otherwise_after(error):
                    raise
                if mode is not None and hasattr(mode, "restart"):
                    mode.restart()  # type: ignore[attr-defined]

    def _does_otherwise_after(self, error: Exception) -> bool:
        """Return whether a replay may succeed now that it is known what this one failed of."""
        if _REENTRANT in str(error) and not self._accumulate:
            self._accumulate = True
            return True
        if isinstance(error, AttributeError) and self._has_hidden and not self._buffers_for_all:
            self._buffers_for_all = True
            return True
        return False

    def _why_heard(self, modules: list[torch.nn.Module], parameters: Sequence[torch.Tensor]) -> str:
        """Return why others would hear of gradients that must be accumulated to be had; "" if nobody would."""
        if not alone.is_one_of_many() and not any(hasattr(p, own_gradients.BUFFER) for p in parameters):
            return ""
        if self._whole or any(alone.is_gathered(module) for module in modules):
            return "reentrant checkpointing hands gradients to the wrapper of the model"
        return own_gradients.why_not(modules, parameters)

    def _run(
        self,
        microbatch: Microbatch,
        parameters: Sequence[torch.Tensor],
        mode: contextlib.AbstractContextManager[Any] | None,
        context: OpContext | None,
        around: contextlib.AbstractContextManager[Any] | None,
        rows: Rows | None,
        seed_scale: float,
        float32_at: tuple[str, int] | None,
        *,
        must_leave_no_trace: bool,
    ) -> Replayed:
        events = self._tape.slice(microbatch)
        modules = _modules_of(event for _, event in events)
        parts = _parts_of(modules)
        gathered = _gathered(modules, parts)
        inside = (p for part in parts for p in part._parameters.values() if p is not None)
        buffers = OwnBuffers((*parameters, *inside), for_all=self._buffers_for_all)
        own = OwnParameters(parts if self._accumulate and not gathered and not self._whole else ())
        self._has_hidden = buffers.has_hidden
        rng = _rng_now(event for _, event in events)
        with contextlib.ExitStack() as stack:
            stack.callback(restore_rng, rng)
            stack.enter_context(torch_state.kept(parts, self.on_leaving, must_be_all=must_leave_no_trace))
            stack.enter_context(self._paused())
            stack.enter_context(_tables_as_they_were(parts, gathered))
            stack.enter_context(_modules_as_they_were(event for _, event in events))
            if self._whole is not None:
                stack.enter_context(self._whole.in_place())
            stack.enter_context(alone.without_wrappers_hooks(event.function for _, event in events))
            stack.enter_context(buffers.in_place())
            stack.enter_context(own.in_place())
            stack.enter_context(eagerly := Eagerly(parts))
            if context is not None:
                stack.callback(context.attach())
            stack.enter_context(sharded.put_back(gathered))
            if self._own_groups is not None:
                stack.enter_context(OwnCollectives(self._own_groups))
            elif alone.is_one_of_many():
                stack.enter_context(alone.NoCollectives())
            if around is not None:
                stack.enter_context(around)
            is_changed = rows is not None or around is not None
            stack.enter_context(kept_in_bounds([event for _, event in events], parts, is_changed=is_changed))
            if mode is not None:
                stack.enter_context(mode)
            if self._whole is not None:
                stack.enter_context(self._whole.on_demand(getattr(mode, "keep_captured", _nobody)))
            slots: dict[int, torch.Tensor] = {}
            outside = outside_modules([event for _, event in events])
            for _, event in events:
                self.deadline.check()
                self._do(event, slots, context, rows, float32_at, outside, own.of)
            roots = [slots[slot] for slot in microbatch.roots if slot is not None]
            seeds: list[Any] = [_in_shape(seed, root) for seed, root in zip(microbatch.seeds, roots, strict=True)]
            if seed_scale != 1.0:
                seeds = [
                    (torch.ones_like(root) if seed is None else seed) * seed_scale
                    for root, seed in zip(roots, seeds, strict=True)
                ]
            accumulate = self._accumulate or bool(gathered) or bool(self._whole)
            getattr(mode, "starts_from", _nobody)(seeds)
            getattr(mode, "ends_in", _nobody)(roots)
            used = own.of_all(parameters)
            with numerics_entered(microbatch.numerics):
                given = self._gradients(roots, seeds, used, accumulate=accumulate)
            grads = buffers.gradients(parameters, used, given)
            self._was_compiled = eagerly.in_place_of_compiled
            return Replayed(values=[root.detach() for root in roots], grads=grads)

    def each_alone(
        self, microbatch: Microbatch, parameters: Sequence[torch.Tensor], n_rows: int
    ) -> tuple[list[float], list[float]]:
        """Run each sample as a batch of its own, vectorised; return the losses and L2 norms of gradients.

        Args:
            parameters: of whose gradients the norms are.
            n_rows: of the batch.

        Raises:
            ReplayImpossible: with the reason.
            Exception: of operations that torch.func does not vectorise: those that look at values, change buffers in
                place, or have a backward of their own.
        """
        if why := self.why_not(microbatch):
            raise ReplayImpossible(why)
        pairs = self._tape.slice(microbatch)
        events = [event for _, event in pairs]
        modules = _modules_of(events)
        if not self.is_alone or any(alone.is_gathered(event.function) for event in events):
            raise ReplayImpossible("its parameters do not lie here as they are used")
        trained = [p for p in parameters if p.requires_grad]

        def loss_of(values: list[torch.Tensor], row: torch.Tensor, *, is_flat: bool) -> tuple[torch.Tensor, Any]:
            stand_ins = {id(p): value for p, value in zip(trained, values, strict=True)}
            rows, slots = Rows(n=n_rows, kept=row.unsqueeze(0), is_flat=is_flat), dict[int, torch.Tensor]()
            with per_sample.parameters_replaced(modules, stand_ins):
                for event in events:
                    self.deadline.check()
                    self._do(event, slots, None, rows, None, standing_for=lambda t: stand_ins.get(id(t), t))
            return per_sample.total([slots[slot] for slot in microbatch.roots if slot is not None], microbatch.seeds)

        with (
            self._in_place(events, is_changed=True, must_be_all=True),
            self.deadline.one("each sample"),
            numerics_entered(microbatch.numerics),
        ):
            return per_sample.losses_and_norms(loss_of, trained, n_rows)

    def make(
        self,
        tape: Tape,
        slot: int,
        *,
        mode: contextlib.AbstractContextManager[Any],
        context: OpContext,
        outside: Callable[[Event], Outside],
    ) -> torch.Tensor:
        """Do again what made a value before the model was called; return the value.

        Args:
            tape: on which it is.
            slot: its number there.
            mode: entered around all of it.
            context: told of the source line of each operation.
            outside: what the user's own operations are called.

        Raises:
            ReplayImpossible: with the reason.
        """
        made = tape.making(slot)
        events = [event for _, event in made]
        why = next((why for event in events if (why := alone.why_not(event.function))), "")
        if why := tape.why_not([slot]) or why or tape.mutated(made):
            raise ReplayImpossible(why)
        slots: dict[int, torch.Tensor] = {}
        with self._in_place(events, mode, context):
            for event in events:
                self.deadline.check()
                self._do(event, slots, context, None, None, outside)
        return slots[slot]

    def forward(
        self,
        microbatch: Microbatch,
        made_of: Callable[[int, Event], Event],
        around: contextlib.AbstractContextManager[Any],
        then: Callable[[dict[int, torch.Tensor]], None],
        rows: Rows | None = None,
    ) -> None:
        """Run forward and loss of a micro-batch with other inputs, without backward. It writes only to its own tensors.

        Args:
            made_of: gives the call to do in place of the one at this position of the tape.
            around: entered around all of it.
            then: told what its calls gave, by slot, before all is put back.
            rows: of the batch, to do in place of all.

        Raises:
            ReplayImpossible: with the reason.
        """
        events = self._tape.slice(microbatch)
        if why := self.why_not(microbatch):
            raise ReplayImpossible(why)
        modules, slots = _modules_of(event for _, event in events), dict[int, torch.Tensor]()
        buffers = OwnBuffers((p for module in modules for p in module.parameters()), for_all=False)
        own_events = [event for _, event in events]
        in_place = self._in_place(own_events, groups=self._own_groups, is_changed=True, must_be_all=True)
        with self.deadline.one("forward"), in_place as put_back:
            held = [owner._buffers[key] for _, event in events for owner, key, _ in event.buffers]
            own = OwnWrites([*put_back, *(each for each in held if each is not None)])
            with buffers.in_place(), own, around:
                for position, event in events:
                    self.deadline.check()
                    self._do(made_of(position, event), slots, None, rows, None)
                then(slots)

    def events(self, microbatch: Microbatch) -> list[tuple[int, Event]]:
        """Return the calls that led to the loss of a micro-batch, with positions on the tape."""
        return self._tape.slice(microbatch)

    @contextlib.contextmanager
    def _in_place(
        self,
        events: list[Event],
        mode: contextlib.AbstractContextManager[Any] | None = None,
        context: OpContext | None = None,
        *,
        groups: OwnGroups | None = None,
        is_changed: bool = False,
        must_be_all: bool = False,
    ) -> Generator[list[torch.Tensor], None, None]:
        """Do events again in this block; afterwards all is as it was.

        Args:
            events: to be done.
            mode: entered around all of it.
            context: told of the source line of each operation.
            groups: over which all ranks do the forward of these; None: this rank does them alone.
            is_changed: they are given other inputs than in the run.
            must_be_all: not where a module holds what cannot be put back: ReplayImpossible.

        Gives tensors, kept by modules beside buffers, whose values are put back.
        """
        rng, modules = _rng_now(events), _modules_of(events)
        parts = _parts_of(modules)
        gathered = _gathered(modules, parts)
        with contextlib.ExitStack() as stack:
            stack.callback(restore_rng, rng)
            put_back = stack.enter_context(torch_state.kept(parts, self.on_leaving, must_be_all=must_be_all))
            stack.enter_context(self._paused())
            stack.enter_context(_tables_as_they_were(parts, gathered))
            stack.enter_context(_modules_as_they_were(iter(events)))
            whole = self._whole if groups is not None else None
            if whole is not None:
                stack.enter_context(whole.in_place())
            stack.enter_context(alone.without_wrappers_hooks(event.function for event in events))
            stack.enter_context(Eagerly(parts))
            if context is not None:
                stack.callback(context.attach())
            if groups is not None:
                stack.enter_context(sharded.put_back(gathered, always=True))
                stack.enter_context(OwnCollectives(groups))
            elif alone.is_one_of_many():
                stack.enter_context(alone.NoCollectives())
            stack.enter_context(kept_in_bounds(events, parts, is_changed=is_changed))
            if mode is not None:
                stack.enter_context(mode)
            if whole is not None:
                stack.enter_context(whole.on_demand(_nobody))
            yield put_back

    def run_modules(
        self, microbatch: Microbatch, *, mode: contextlib.AbstractContextManager[Any], context: OpContext
    ) -> list[torch.Tensor]:
        """Run only the outermost module calls of a micro-batch, without loss and backward; return their outputs.

        Raises:
            ReplayImpossible: with the reason.
        """
        before = [m.n_events for m in self._tape.microbatches if m.number < microbatch.number]
        events = self._tape.events[max(before, default=0) : microbatch.n_events]
        why = next((why for event in events if (why := alone.why_not(event.function))), "")
        if why := why or self._tape.mutated([*enumerate(events)]):
            raise ReplayImpossible(why)
        outputs: list[torch.Tensor] = []
        with self._in_place(events, mode, context):
            slots: dict[int, torch.Tensor] = {}
            for event in events:
                if event.module is not None and all(slot in slots for slot in event.needs):
                    self._do(event, slots, context, None, None)
                    outputs = [slots[slot] for slot in event.slots if slot in slots]
        return outputs

    def _do(
        self,
        event: Event,
        slots: dict[int, torch.Tensor],
        context: OpContext | None,
        rows: Rows | None,
        float32_at: tuple[str, int] | None,
        outside: Callable[[Event], Outside] = in_loss_code,
        standing_for: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        def resolve(tensor: torch.Tensor) -> torch.Tensor:
            if tensor is event.was:
                return tensor.clone()  # what it does in place must not change what is kept
            number = PLACEHOLDERS.number(tensor)
            if number is not None:
                made = slots[number]
                if number in event.cut and not is_trainable_leaf(made):
                    slots[number] = made = made.detach().requires_grad_()
                return made
            if self._whole is not None:
                tensor = self._whole.tensor(tensor)
            tensor = standing_for(tensor)
            return tensor if rows is None or self._is_parameter(tensor) else rows.of(tensor)

        args, kwargs = replace_tensors(event.args, resolve), replace_tensors(event.kwargs, resolve)
        if rows is not None and event.module is None:
            args = rows.sizes(event.function, args)
        if event.rng is not None:
            restore_rng(event.rng)
        if context is not None:
            context.outside = None if event.module is not None else outside(event)
            context.called_at, context.done_by = (event.code, event.line), Replayer._do.__code__
        ambient = event.ambient
        if float32_at is not None and event.code is not None and (event.code.co_filename, event.line) == float32_at:
            args, kwargs = replace_tensors(args, _widened), replace_tensors(kwargs, _widened)
            ambient = replace(ambient, autocast=tuple((kind, False, dtype) for kind, _, dtype in ambient.autocast))
        lent = [each.of(resolve) for each in event.lent]
        with entered(ambient), numerics_entered(event.numerics), handed_in(event.handed), lending(lent):
            result = alone.callee(event.function)(*args, **kwargs)
        if result is None and event.slots:
            result = args[0]  # changed in place
        found = [tensor for _, tensor in tensors(result)]
        for owner, key in event.left:
            found.append(vars(owner())[key])
        slots.update(zip(event.slots, found, strict=False))

    def _gradients(
        self, roots: list[torch.Tensor], seeds: list[Any], parameters: Sequence[torch.Tensor], *, accumulate: bool
    ) -> list[torch.Tensor | None]:
        wanted = [p for p in parameters if p.requires_grad] if any(root.requires_grad for root in roots) else []
        if not parameters:
            return []
        if accumulate:
            full = [p for p in wanted if self._whole is not None and self._whole.made(p)]
            with _isolated_grads(wanted), _only_bad_ones_kept(full):
                torch.autograd.backward(roots, seeds)
                found = [p.grad for p in wanted]
        else:
            found = list(torch.autograd.grad(roots, wanted, seeds, allow_unused=True)) if wanted else []
        by_id = {id(p): g for p, g in zip(wanted, found, strict=True)}
        return [by_id.get(id(p)) for p in parameters]


def _rng_now(events: Iterable[Event]) -> RngState:
    """Return the states of all random generators that these events draw from."""
    return capture_rng({generator: None for event in events if event.rng for generator, _ in event.rng.own})


def _nobody(_: Any) -> None:
    """Do nothing: nobody has to be told."""


class _FormatsSeen(Mode):
    """Collect the formats of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.found.update(
            t.dtype for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)
        )
        return out


def _in_shape(seed: torch.Tensor | None, root: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of the loss in the shape of the root, which may be another one with one element."""
    is_other = seed is not None and seed.shape != root.shape and seed.numel() == root.numel() == 1
    return seed.reshape(root.shape) if is_other and seed is not None else seed


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _modules_of(events: Iterable[Event]) -> list[torch.nn.Module]:
    return [event.module for event in events if event.module is not None]


def _parts_of(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return all inside of these, each once. A walk through a large model takes its time, so one serves all."""
    return list({id(part): part for root in modules for part in root.modules()}.values())


def _gathered(modules: Iterable[torch.nn.Module], parts: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return those of these modules whose parameters FSDP2 gathers, given all that are inside of them."""
    return [module for module in modules if alone.is_gathered(module)] if alone.are_gathered(parts) else []


@contextlib.contextmanager
def _tables_as_they_were(
    parts: Sequence[torch.nn.Module], gathered: Sequence[torch.nn.Module]
) -> Generator[None, None, None]:
    """Restore which parameters and modules these hold after this block, but not of what FSDP2 gathers."""
    others = {id(part) for root in gathered for part in root.modules()}
    held: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        (table, dict(table) if table else None)
        for part in parts
        if id(part) not in others and not isinstance(part, torch.jit.ScriptModule)
        for table in (part._parameters, part._modules)
    ]
    try:
        yield
    finally:
        for table, before in held:
            if before is None:
                table.clear()
            elif len(table) != len(before) or not all(map(operator.is_, table.values(), before.values())):
                table.clear()
                table.update(before)


@contextlib.contextmanager
def _modules_as_they_were(events: Iterator[Event]) -> Generator[None, None, None]:
    """Set training flags and changed buffers as before the calls within this block, and restore both afterwards.

    Statistics of norms in training have copies in their place meanwhile, also if no call was seen to change them.
    """
    flags: list[tuple[torch.nn.Module, bool]] = []
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor | None]] = []
    seen: set[tuple[int, str]] = set()
    roots: dict[int, torch.nn.Module] = {}
    try:
        for event in events:
            module = event.module
            if module is not None:
                roots[id(module)] = module
            if module is not None and event.training is not None and module.training != event.training:
                flags.extend((m, m.training) for m in module.modules())
                module.train(event.training)
            for owner, key, before in event.buffers:
                if (id(owner), key) not in seen:  # the state before the first call of this step
                    seen.add((id(owner), key))
                    buffers.append((owner, key, owner._buffers[key] if key in owner._buffers else None))  # noqa: SIM401  (a ScriptModule's has no get)
                    owner._buffers[key] = before.clone()
        parts = {part: None for root in roots.values() for part in root.modules() if isinstance(part, _NormBase)}
        for owner in parts:
            for key, now in owner._buffers.items() if owner.training else ():
                if now is not None and (id(owner), key) not in seen:
                    buffers.append((owner, key, now))
                    owner._buffers[key] = now.clone()
        yield
    finally:
        for owner, key, now in buffers:
            owner._buffers[key] = now
        for module, flag in flags:
            module.training = flag


@contextlib.contextmanager
def _only_bad_ones_kept(parameters: Sequence[torch.Tensor]) -> Generator[None, None, None]:
    """Drop finite gradients as soon as they are made: the full ones of a sharded model may not fit together."""

    def look(parameter: torch.Tensor) -> None:
        with _disable_current_modes():
            if parameter.grad is not None and is_finite(parameter.grad):
                parameter.grad = None

    with contextlib.ExitStack() as undo:
        for parameter in parameters:
            undo.callback(parameter.register_post_accumulate_grad_hook(look).remove)
        yield


@contextlib.contextmanager
def _isolated_grads(parameters: list[torch.Tensor]) -> Generator[None, None, None]:
    """Allow `.backward()` in this block without touching the user's gradients or firing their accumulation hooks."""
    grads = [p.grad for p in parameters]
    hooks = [getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters]
    try:
        for p in parameters:
            p.grad = None
            if getattr(p, "_post_accumulate_grad_hooks", None):
                p._post_accumulate_grad_hooks = None  # type: ignore[attr-defined]
        yield
    finally:
        for p, grad, hook in zip(parameters, grads, hooks, strict=True):
            p.grad = grad
            if hook:
                p._post_accumulate_grad_hooks = hook  # type: ignore[attr-defined]
