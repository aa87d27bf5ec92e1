"""What a measure of health may ask of a recording: looks, norms of gradients, outputs of modules, what is trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from hypocenter.detect.columns import Floats, Ints
from hypocenter.diagnose.health_series import Kind, Place, RankHealth, Series, look_at_health
from hypocenter.record.reader import RecordedRun


class Recorded:
    """A recording; it is read when something is first asked for."""

    def __init__(self, recording: RecordedRun) -> None:
        self._recording = recording

    @cached_property
    def _ranks(self) -> list[RankHealth]:
        return [rank for part in self._recording.over_parts(look_at_health) for rank in part]

    @cached_property
    def n_steps(self) -> int:
        """Steps that were recorded."""
        return len(np.unique(np.concatenate([rank.steps for rank in self._ranks])))

    @property
    def norms(self) -> Sequence[tuple[Ints, Floats]]:
        """Of each rank: steps of one micro-batch, and the norms of their gradients."""
        return [rank.norms for rank in self._ranks]

    @property
    def has_looks(self) -> bool:
        """Whether it was recorded with --health, and a look was made."""
        return bool(self._looks)

    @property
    def has_outputs(self) -> bool:
        """Whether it was recorded at level modules."""
        return bool(self.outputs)

    @cached_property
    def _looks(self) -> Mapping[str, Sequence[Series]]:
        """By port."""
        return self._by_port("look")

    def looks(self, port: str) -> Sequence[Series]:
        """Looks at one thing, by place in the order of the model."""
        return self._looks.get(port, ())

    @cached_property
    def outputs(self) -> Sequence[Series]:
        """What modules gave, the largest of each step, in the order of the model."""
        return [series for of_port in self._by_port("output").values() for series in of_port]

    @cached_property
    def gradients(self) -> Sequence[Series]:
        """Norms of parameters' gradients, as the root of `sumsq`."""
        return self._of("gradient")

    @cached_property
    def local_gradients(self) -> Sequence[Series]:
        """Norms of each rank's own part, before the ranks' are averaged."""
        return self._of("local")

    @cached_property
    def trained(self) -> frozenset[str]:
        """Parameters that an optimizer holds and that ask for a gradient, at its first update."""
        facts = self._recording.facts()
        if facts is None:
            return frozenset()
        held = {name for one in facts.optimizers for group in one.groups for name in group.parameters}
        return frozenset(
            name
            for module in facts.modules
            for key, tensor in module.parameters.items()
            if tensor.trained and (name := f"{module.path}.{key}" if module.path else key) in held
        )

    def _of(self, kind: Kind) -> list[Series]:
        """Of all ranks, those that began first first."""
        found = [series for rank in self._ranks for series in rank.series.get(kind, ())]
        return sorted(found, key=lambda series: (series.steps[0], series.began))

    def _by_port(self, kind: Kind) -> Mapping[str, Sequence[Series]]:
        found: defaultdict[str, list[Series]] = defaultdict(list)
        for series in self._of(kind):
            found[series.place.port].append(series)
        return found


__all__ = ["Place", "Recorded", "Series"]
