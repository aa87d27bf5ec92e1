"""What a program did to each parameter's gradient after backward: taken to be one factor, or the parameter is left out.

Mean over micro-batches, loss scale, clipping: all multiply. Where it was something else, nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SMALL = 64  # elements
MIN_COSINE = 0.999  # between a parameter's gradient and its replay's: else something else was added to it


class Factors:
    """The factor from replayed to given gradient of each parameter, by position.

    Args:
        sizes: elements of each parameter.

    Attributes:
        base_square: sum of squares of all replayed gradients without noise.
        n_left_out: parameters that do not fit.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._factors: dict[int, float] = {}
        self._clip = 1.0
        self.base_square = 0.0
        self.n_left_out = 0

    @property
    def is_whole(self) -> bool:
        """Whether every gradient of the run fits."""
        return self.n_left_out == 0

    def leave_out(self) -> None:
        """Count a gradient whose factor is not known."""
        self.n_left_out += 1

    def fit(self, position: int, *, dot: float, given: float, base: float, is_equal: bool) -> None:
        """Compare a gradient of the run with its replay without noise, and keep the factor between them if they fit.

        Args:
            dot: their scalar product.
            given: square of the norm of the run's.
            base: of the replay's.
            is_equal: they are the same to the bit.
        """
        self.base_square += base
        if base == 0.0 and given == 0.0:
            return
        if given == 0.0 or base == 0.0 or dot < MIN_COSINE * (given * base) ** 0.5:
            self.n_left_out += 1
            return
        self._factors[position] = 1.0 if is_equal else dot / base

    def leave_out_flukes(self) -> None:
        """Leave out small gradients whose factor differs from large ones': one element always points the same way."""
        small = [i for i in self._factors if self._sizes[i] < SMALL]
        large = sorted(factor for i, factor in self._factors.items() if self._sizes[i] >= SMALL)
        if not small or not (large or self.n_left_out):
            return
        usual = large[len(large) // 2] if large else None
        flukes = [i for i in small if usual is None or abs(self._factors[i] / usual - 1.0) > 1.0 - MIN_COSINE]
        for index in flukes:
            del self._factors[index]
        self.n_left_out += len(flukes)

    def settle(self, square: float, *, is_clipped: bool) -> float | None:
        """Finish a sample: clip its norm to that without noise, if the program clipped the run's.

        Args:
            square: of the norm of all its gradients.

        Returns:
            Its norm over that without noise; None: a part is not known.
        """
        self._clip = 1.0
        if not self.is_whole or self.base_square == 0.0:
            return None
        ratio = (square / self.base_square) ** 0.5
        self._clip = 1.0 / ratio if is_clipped and ratio > 0.0 else 1.0
        return ratio

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (position, factor) of the parameters that fit, with the clipping of this sample."""
        for position, factor in self._factors.items():
            yield position, factor * self._clip
