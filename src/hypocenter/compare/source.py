"""The line of source code of a module, from facts.json."""

from __future__ import annotations

from hypocenter.nouns import Source
from hypocenter.record.facts_file import Facts


def source_of(facts: Facts | None, site: str) -> Source | None:
    """Where the forward of a module begins, or of the module that a parameter belongs to; None when not recorded."""
    if facts is None:
        return None
    where = {module.path: module.where for module in facts.modules}
    file, _, line = (where.get(site) or where.get(site.rpartition(".")[0], "")).rpartition(":")
    return Source(file=file, line=int(line), function="forward") if file and line.isdigit() else None
