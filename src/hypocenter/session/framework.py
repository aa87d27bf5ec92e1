"""What observers that serve every framework need of one: its optimizers, samples of tensors, some arithmetic.

An *array* is what `sample` gives: torch's tensors on their device, NumPy's arrays on the host for MindSpore. `xp` is
the module with their functions, of which only those are used that both have under one name and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from hypocenter.formats import Format

if TYPE_CHECKING:
    from hypocenter.session.events import Update

GROUPS = 8  # of an optimizer, whose settings are looked at
SCHEDULED = frozenset({"lr", "momentum", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"})
"""Settings that a schedule moves."""
FEW = 16  # elements of a parameter in a peek, at an equal stride
WHOLE = 1 << 16  # elements of all parameters of a peek, up to which it holds all: what fits in a core's cache
SAMPLE = 4096  # elements of a parameter that are looked at: a share is then known to 1.6 % (two standard deviations)

Then = Callable[[Sequence[float]], None]
Undo = Callable[[], None]


def spacing(xp: Any, values: Any, form: Format) -> Any:
    """Distance to the next larger magnitude of a format: 2^(floor(log2|w|) - fraction bits), subnormals included.

    Args:
        values: in a wider format, holding numbers of the grid.
    """
    exponent = xp.frexp(values)[1] - 1  # frexp's fraction lies in [0.5, 1)
    lowest = xp.full_like(exponent, form.smallest_exponent)
    exponent = xp.maximum(xp.where(values == 0, lowest, exponent), lowest)
    return xp.ldexp(xp.ones_like(values), exponent - form.fraction_bits)


@dataclass(frozen=True, slots=True)
class Peek:
    """Copies of elements of each of some parameters: of all of the first ones up to WHOLE, else of FEW."""

    values: Any  # one array
    places: tuple[tuple[int, int, int], ...]  # number of a parameter, begin and end of its elements in `values`


def stride_of(n: int) -> int:
    """Of FEW among so many elements."""
    return -(-n // FEW)


class Deferred(Protocol):
    """Numbers on their way to the host."""

    def add(self, numbers: Any, then: Then) -> None:
        """Call `then` with these numbers (1-d) as soon as reading them makes nobody wait."""
        ...

    def read(self) -> None:
        """Transfer and hand out what is waiting."""
        ...


class Framework(Protocol):
    """One framework."""

    xp: Any

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """Hear of each step of a schedule or average: `tell(it, optimizer or None)`; `fail` once it is broken."""
        ...

    def optimizer(self, optimizer: Any) -> Any | None:
        """What has `param_groups` in torch's words, whatever it is wrapped in; None for one that is not known."""
        ...

    def state_of(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """State of a parameter in torch's words. `optimizer` as the method above gives it."""
        ...

    def family_of(self, optimizer: Any) -> str:
        """The formula of `observers.intended` that it follows; "" for one that is not known."""
        ...

    def with_gradients(self, update: Update, parameters: Iterable[Any]) -> list[Any]:
        """Those of these parameters that the micro-batches of this update gave a gradient."""
        ...

    def gradient(self, update: Update, parameter: Any) -> Any | None:
        """A sample of its gradient as the optimizer uses it (in torch with a loss scale, if one is in it)."""
        ...

    def sample(self, tensor: Any, size: int = SAMPLE) -> Any | None:
        """At most `size` elements at an equal stride, the same for every tensor of this shape; a view where possible.

        None for what has no values on this rank, and for large tensors whose elements do not lie in order.
        """
        ...

    def peek(self, parameters: Sequence[Any]) -> Peek | None:
        """A few elements of each, where nobody waits for a device and it costs next to nothing; else None."""
        ...

    def copied(self, array: Any) -> Any:
        """An array that later writes to the tensor do not change."""
        ...

    def kind(self, value: object) -> Any:
        """Format and device of a tensor, something else of a number of Python, None of all else."""
        ...

    def gathered(
        self, columns: Sequence[Sequence[Any]], size: int, start: int = 0
    ) -> list[tuple[Any, Sequence[int]] | None]:
        """Of each column, copies of samples of its tensors, or its numbers: one flat array, and elements of each.

        None of a column of several kinds.

        Args:
            size: at most so many elements of each, at an equal stride; 0 of what `sample` gives None of.
            start: another one takes other elements, where the framework can.
        """
        ...

    def all_same(self, pairs: Sequence[tuple[Any, Any]]) -> bool:
        """Whether each two arrays, on one device, hold the same values, in one transfer. NaN is not itself."""
        ...

    def n_changed(self, trios: Sequence[tuple[Any, Any, float]]) -> list[tuple[int, int]]:
        """How many elements were looked at and how many have changed, of each (before, now, slack).

        Args:
            trios: samples or numbers; now may be None, of what is there no more: then (0, 1). Of floating-point numbers
                slack times the largest magnitude is no change.
        """
        ...

    def settings(self, optimizer: Any) -> list[dict[str, float]]:
        """Options of its first groups that are numbers, but those that a schedule moves. Waits for no device."""
        ...

    def wide(self, array: Any) -> Any:
        """The same in float64 where the device has it; float32 carries decisions on bfloat16 and float16 as well."""
        ...

    def is_on_host(self, tensor: Any) -> bool:
        """Whether its values can be read without waiting for anything."""
        ...

    def are_same(self, one: Any, other: Any) -> bool:
        """Whether two arrays of the host hold the same values. NaN is not itself."""
        ...

    def on_host(self, array: Any) -> NDArray[Any]:
        """In float64, as NumPy's."""
        ...

    def ulp(self, values: Any, dtype: Any) -> Any:
        """Distance to the next larger magnitude of a low format, for wide `values` that are numbers of it."""
        ...

    def rounded(self, value: float, dtype: Any) -> float:
        """The number of a low format that this becomes."""
        ...

    def versions(self, tensors: Sequence[Any]) -> list[int]:
        """Counters of writes to each; [] where the framework keeps none."""
        ...

    def named(self, model: Any) -> tuple[str, Mapping[str, Any]]:
        """The class of a model, and its parameters by all their names in it, both without wrappers."""
        ...

    def said_to_be_tied(self, model: Any) -> list[tuple[Any, Any]]:
        """Parameters that the model itself says are one and the same, in pairs, whether they are or not."""
        ...

    def flags(self, model: Any) -> Mapping[str, bool]:
        """Truth values that its modules and their configs hold as attributes: how it was asked to be made."""
        ...

    def owner(self, roots: Sequence[Any], parameter: Any) -> Any | None:
        """The module, in one of these models, that it is a parameter of."""
        ...

    def times_nothing(self, roots: Sequence[Any], parameters: Sequence[Any]) -> list[Any]:
        """Those of these parameters that losses depend on only through what is multiplied by the number 0."""
        ...

    def is_merged(self, roots: Sequence[Any], parameter: Any) -> bool:
        """Whether it is of an adapter that a module in training has added to its own weights, and leaves out."""
        ...

    def has_copies(self, parameters: Sequence[Any]) -> bool:
        """Whether an optimizer of these holds copies that stand for several of the user's parameters."""
        ...

    def is_tensor(self, value: object) -> bool:
        """Whether this is one."""
        ...

    def is_low(self, value: object) -> bool:
        """Whether this is a tensor in a low format."""
        ...

    def name_of(self, dtype: Any) -> str:
        """`bfloat16`, of a tensor's dtype."""
        ...

    def deferred(self) -> Deferred:
        """A queue of numbers."""
        ...

    def number(self, value: Any) -> float | None:
        """An option of an optimizer on the host; None if it is nothing that is a number."""
        ...
