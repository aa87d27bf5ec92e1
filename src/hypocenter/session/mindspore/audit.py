"""The audit of steps of MindSpore in PyNative: replays of the micro-batches of one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.detect.microbatch_rows import FAINTLY_UNEVEN
from hypocenter.nouns import Reading, replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayed, Replayer, Tracer
from hypocenter.replay.mindspore.flow import Flow
from hypocenter.replay.mindspore.label_weights import LabelWeights
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.poison import IndexUnwritten, Poison, fresh_memory
from hypocenter.session.events import Update
from hypocenter.session.host_arrays import strided
from hypocenter.session.mindspore.calibration import must_repeat
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers import audit
from hypocenter.session.observers.audit import ELEMENTS, KEPT_AT_MOST, Balance, Entries, tolerance_of
from hypocenter.session.observers.label_rows import Labels, even_factors, gap_row, label_rows, uneven_share
from hypocenter.session.observers.ways import Ways
from hypocenter.session.unwritten import unwritten_row
from hypocenter.summary.reducers.mindspore_values import dtype_name, on_host
from hypocenter.tap.free_host_memory import SPARE, free_on_host
from hypocenter.tap.mindspore.tape import GradCall
from hypocenter.tap.unwritten import find_read

Array = NDArray[Any]


class Audit(audit.Audit[Context]):
    """Of one rank: gradients that were reduced over several are not what its own micro-batches give."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._ways = Ways(context.label)
        self._n_fresh = 0  # tensors of fresh memory that the last micro-batch makes
        self._looks_at_memory = True  # until some was found to be read unwritten
        self._is_memory_due = schedule.parse("doubling")

    def look(self, update: Update, *, can_be: bool) -> None:
        """Not in jobs of several ranks."""
        super().look(update, can_be=can_be and self.context.rank()[1] == 1)

    def balance(self, update: Update) -> Balance:
        """By replays; sums are held on the host."""
        needed = sum(8 * int(parameter.size) for parameter, _ in update.gradients) * 2
        if SPARE * needed > (free := free_on_host()):
            raise ReplayImpossible(f"it takes about {needed >> 20} MiB of the host, of which {free >> 20} MiB are free")
        parameters = [parameter for parameter, _ in update.gradients]
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        sums: list[Array | None] = [None] * len(parameters)
        parts: list[list[Array]] = [[] for _ in parameters]
        heard: list[LabelWeights] = []
        trained = [parameter for parameter in update.parameters if parameter.requires_grad]
        for call in update.microbatches:
            heard.append(LabelWeights())
            flow = self._flow(trained) if call is update.microbatches[-1] else None
            self._n_fresh = 0
            with fresh_memory(self._counted):
                replayed = self._run(call, heard[-1], flow)
            self.note_how_far(update, partial(must_repeat, call, replayed))
            if flow is not None and (row := self._ways.row(update, flow.paths(), trained)) is not None:
                self.rows.append(replace(row, order=self.context.clock.next_order()))
            for weight, gradient in zip(call.weights, replayed.grads, strict=False):
                place = places.get(id(weight))
                if place is None or not isinstance(gradient, ms.Tensor):
                    continue
                values, known = np.asarray(on_host(gradient), np.float64), sums[place]
                sums[place] = values if known is None else known + values
                if len(parts[place]) <= KEPT_AT_MOST:
                    parts[place].append(np.array(strided(values, ELEMENTS)))
        used = [gradient if isinstance(gradient, ms.Tensor) else None for _, gradient in update.gradients]
        pairs = list(zip(used, sums, strict=True))
        if len({id(call.fn) for call in update.microbatches}) == 1:
            self._weigh(update, heard, used, parts)
        return Balance(parameters=parameters, entries=_entries(pairs), used=used, parts=parts.__getitem__)

    def unwritten(self, update: Update) -> Reading | None:
        """Do the last micro-batch once more, with fresh memory full of NaN."""
        is_host = ms.get_context("device_target") == "CPU"
        if not (is_host and self._n_fresh and self._looks_at_memory and self._is_memory_due(update.step)):
            return None

        def is_as_before(mode: Poison) -> bool:
            try:
                return self._run(update.microbatches[-1], mode).finite
            except IndexUnwritten:
                return False

        found = find_read(is_as_before, partial(Poison, Places(self.context.names)))
        if found is None:
            return None
        self._looks_at_memory = False  # it is known
        return unwritten_row(found, update.step, self.context.clock.next_order())

    def _weigh(
        self, update: Update, heard: Sequence[LabelWeights], used: Sequence[Any | None], parts: Sequence[list[Array]]
    ) -> None:
        """Does each label weigh the same, in what the optimizer is given? For HC331.

        The program adds its micro-batches up itself, each with a factor of its own perhaps.
        """
        weights = [each.weights for each in heard]
        whole = [i for i, each in enumerate(parts) if len(each) == len(heard) and used[i] is not None]
        if len(heard) < 2 or not whole or any(each is None or not each.size for each in weights):
            return
        columns = [np.concatenate([parts[i][number] for i in whole]) for number in range(len(heard))]
        target = np.concatenate([strided(np.asarray(on_host(used[i]), np.float64), ELEMENTS) for i in whole])
        factors = audit.weights_of(columns, target, audit.TOLERANCE)
        if factors is None:
            return
        labels = [
            Labels(n=each.size, n_counted=int(np.count_nonzero(each)), weight=float(each.sum()) * factor)
            for each, factor in zip(weights, factors, strict=True)
            if each is not None
        ]
        if uneven_share(labels) < FAINTLY_UNEVEN:
            return
        order = self.context.clock.next_order
        self.rows += label_rows(labels, update.step, order)
        even = sum(
            column * factor * by for column, factor, by in zip(columns, factors, even_factors(labels), strict=True)
        )
        gap = float(np.linalg.norm(target - even) / max(float(np.linalg.norm(even)), np.finfo(np.float64).tiny))
        self.rows.append(gap_row(gap, update.step, order))

    def _counted(self, maker: str, made: Any) -> Any:
        self._n_fresh += 1
        return made

    def _flow(self, trained: Sequence[Any]) -> Flow:
        return Flow(trained, Places(self.context.names))

    def _run(
        self, call: GradCall, around: contextlib.AbstractContextManager[Any], tracer: Tracer | None = None
    ) -> Replayed:
        try:
            return self._replayer.run(call, around=around, tracer=tracer, must_leave_no_trace=True)
        except (ReplayImpossible, IndexUnwritten):
            raise
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._audits.stop()
            raise ReplayImpossible(f"the replay raised {type(error).__name__}: {str(error)[:200]}") from error


def _entries(pairs: Sequence[tuple[Any, Array | None]]) -> Entries:
    """Of (used, made). What nothing was made for is left out."""
    places, numbers = list[int](), list[tuple[float, ...]]()
    for place, (used, made) in enumerate(pairs):
        given = None if used is None else np.asarray(on_host(used), np.float64)
        if made is not None and given is not None and given.shape == made.shape:
            a, b = given.reshape(-1), made.reshape(-1)
            places.append(place)
            numbers.append((float(a @ a), float(b @ b), float(a @ b), tolerance_of(dtype_name(used))))
    used, made, dot, tolerance = np.array(numbers, np.float64).reshape(-1, 4).T
    return Entries(places=places, used=used, made=made, dot=dot, tolerance=tolerance)
