"""Numbers that know how far rounding may have moved them: a formula run on them says what it makes, and how exactly.

Each operation adds one rounding error of its result in the format that is computed in, and hands on those of what it
was given (Higham 2002, section 3.3, running error analysis). So terms that cancel do not count as a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.formats import FORMATS, Format

Array = npt.NDArray[np.float64]

ALLOWED = 4.0  # rounding errors that a result may have: the most that rules of torch 2.13 made in 30 million is 3.1
_TINY = FORMATS["float64"].smallest_normal


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """Exact values, the size of one rounding error in each, and the format that they are computed in."""

    exact: Array
    unit: Array
    form: Format

    __array_ufunc__ = None  # a NumPy scalar on the left leaves the operation to this class

    def stored(self, form: Format) -> Rounded:
        """Return the values after they were written in this format; nothing changes if they had it already."""
        return replace(self, unit=np.maximum(self.unit, _one(self.exact, form)))

    def into(self, form: Format) -> Rounded:
        """Return the same values, to be computed with in this format from now on."""
        return replace(self, form=form)

    def __neg__(self) -> Rounded:
        return replace(self, exact=-self.exact)

    def __add__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        return _made(self.exact + value, self.unit + unit, form)

    def __sub__(self, other: Any) -> Rounded:
        return self + -other

    def __mul__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        size = np.abs(value)
        if not isinstance(other, Rounded):
            return _made(self.exact * value, np.where(size == 0, 0.0, self.unit * size), form)
        off = np.where(size == 0, 0.0, self.unit * size) + np.where(
            unit == 0, 0.0, (np.abs(self.exact) + self.unit) * unit
        )
        return _made(self.exact * value, off, form)

    def __truediv__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        if not isinstance(other, Rounded) and np.all(value):
            return _made(self.exact / value, self.unit / np.abs(value), form)
        ratio = self.exact / value  # 0 / 0 is what rules make of an element that never had a gradient, where eps is 0
        stretched = np.where(ratio == 0, 0.0, np.abs(ratio) * _stretched(unit, np.abs(value)))  # 0 stays 0
        return _made(ratio, self.unit / np.abs(value) + stretched, form)

    def __rtruediv__(self, other: float) -> Rounded:
        return Rounded(np.full_like(self.exact, other), np.zeros_like(self.exact), self.form) / self

    def __pow__(self, power: float) -> Rounded:
        if power == 2:
            return self * self
        root = np.sqrt(self.exact)  # what else a formula asks for is refused below
        if power != 0.5:
            raise TypeError(f"a formula of an optimizer may square and take the root, not raise to {power}")
        return _made(root, np.minimum(np.sqrt(self.unit), self.unit / np.maximum(root, _TINY)), self.form)

    def __abs__(self) -> Rounded:
        return replace(self, exact=np.abs(self.exact))

    def __lt__(self, other: Any) -> Array:
        return self.exact < _parts(other, self)[0]

    def __ge__(self, other: Any) -> Array:
        return self.exact >= _parts(other, self)[0]

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Rounded:
        return -self + other


def given(values: Array, form: Format) -> Rounded:
    """Return values that have no error yet."""
    return Rounded(values, np.zeros_like(values), form)


def _parts(other: Any, beside: Rounded) -> tuple[Any, Any, Format]:
    """Return values, their errors and the coarser of both formats. A plain number has no error."""
    if isinstance(other, Rounded):
        return other.exact, other.unit, max(other.form, beside.form, key=lambda form: form.eps)
    return other, 0.0, beside.form


def _made(exact: Array, unit: Array, form: Format) -> Rounded:
    return Rounded(exact, unit + _one(exact, form), form)


def _one(exact: Array, form: Format) -> Array:
    return form.eps * np.abs(exact) + form.least_kept


def _stretched(off: Any, below: Any) -> Any:
    """Return by how much of itself a quotient may be off for each rounding error in its divisor.

    Where all errors that are allowed together could take most of the divisor away nothing can be said: infinite. That
    is so for small second moments in float16, which has no numbers for them.
    """
    left = 1 - ALLOWED * off / below
    return np.where(left > 0, off / below / np.maximum(left, _TINY), np.inf)
