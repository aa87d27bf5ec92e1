"""A relation that does not hold, in a sentence."""

from __future__ import annotations

from hypocenter.relations.check import Broken


def sentence(broken: Broken) -> str:
    """Describe a broken relation in a sentence: what was changed, who noticed, where first, and by how much."""
    name = broken.module or "the model itself"
    where = f" in {name} ({broken.kind})" if broken.kind else " in code outside of modules"
    if broken.source is not None:
        where += f", before {broken.source.file}:{broken.source.line}"
    by = f"; named as an exception: {broken.exception}" if broken.exception else ""
    return (
        f"{broken.relation}: {broken.what}, and {broken.whom} moved by {broken.size:.2g} of their size "
        f"(at most {broken.limit:.2g}), first{where}{by}"
    )
