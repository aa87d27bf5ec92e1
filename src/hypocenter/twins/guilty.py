"""What a run that looks for the guilty operator of a compiled graph notes: `hypocenter twin eager`."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.nouns import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Guilty:
    """The first operator of a graph from which on it is apart.

    Attributes:
        operator: its name, such as `avg_pool2d`.
        site: path of the module that calls it, from the compiled one on; empty where that calls it itself.
        part: `forward`, or `backward` where only gradients are apart.
        error: how far apart, relative to the right value; None: what is not finite, or no gradient.
        noise: how far apart it may be.
        n_operators: of the graph.
        source: the line of the program, where torch knows it.
    """

    operator: str
    site: str
    part: str
    error: float | None
    noise: float
    n_operators: int
    source: Source | None = None
