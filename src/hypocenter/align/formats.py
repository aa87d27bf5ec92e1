"""Whether the module of a parameter computes in another format on the other side."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.align.context import Context
from hypocenter.align.spots import is_forward
from hypocenter.compare.comparison import RowComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatsApart:
    """What was found, and what to do."""

    text: str
    fix: str


def formats_apart(context: Context, site: str) -> FormatsApart | None:
    """The formats of the outputs of a parameter's module, or of that module itself, where the sides have others."""
    found = context.compare(is_forward, 0, name="formats")
    for module in (site.rpartition(".")[0], site):
        for row in found.rows:
            if _is_output(row, module) and row.dtypes[0] != row.dtypes[1] and all(row.dtypes):
                mine, other = row.dtypes
                return FormatsApart(
                    text=f"{module}{_kind(context, module)} gives {mine} in the baseline and {other} in the candidate: "
                    "it computes, and adds up its gradient, in another format",
                    fix=f"let {module} compute in {mine}, as the baseline does",
                )  # fmt: skip
    return None


def _kind(context: Context, module: str) -> str:
    """` (Embedding)`, where the class is known."""
    facts = context.run("baseline", "steps").facts()
    kinds = (one.kind for one in (facts.modules if facts is not None else ()) if one.path == module)
    return "".join(f" ({kind})" for kind in kinds)


def _is_output(row: RowComparison, module: str) -> bool:
    spot = row.pair.baseline[0]
    return bool(module) and spot.phase == "forward" and spot.site == module and spot.port.startswith("out")
