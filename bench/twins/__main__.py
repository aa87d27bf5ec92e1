"""Run the study: `python -m bench.twins [--kind KIND ...] [--loop LOOP ...] [--fault FAULT ...]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.twins.cases import CASES, TESTS, Case
from hypocenter.errors import HypocenterError
from hypocenter.twins.answer import Place, Twin

sys.path[:0] = [str(TESTS.parent), *(str(TESTS.parents[1] / name) for name in ("processes", "align"))]
CHANGES = {"compile": "eager"}
CALM = {  # a compiler in which a fault is planted leaves nothing that another program takes for right
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


def main() -> int:
    """A line for each program, and a table; the number of those of which something wrong is said."""
    parser = argparse.ArgumentParser(prog="bench twins", description=main.__doc__)
    for name in ("kind", "loop", "fault"):
        parser.add_argument(f"--{name}", nargs="+", default=[])
    only = vars(parser.parse_args())
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    with tempfile.TemporaryDirectory(prefix="twins-") as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{folder}/inductor")
        os.environ.update(CALM)
        for case in CASES:
            if any(chosen and getattr(case, name) not in chosen for name, chosen in only.items()):
                continue
            found = said(case, Path(folder))
            is_cause, is_place = is_right(case, found)
            marks = ("c" if is_cause else "-") + ("p" if is_place else "-")
            text = found if isinstance(found, str) else found.sentence
            place = "" if isinstance(found, str) or found.first is None else shown(found.first)
            print(f"{marks} {case.kind:12} {case.loop:12} {case.fault or '(clean)':13} {place} | {text}", flush=True)
            for key in ((case.kind, case.loop), ("all", "")):
                row = counts[key]
                if case.fault:
                    row[0] += 1
                    row[1] += is_cause
                    row[2] += is_cause and is_place
                else:
                    row[3] += 1
                    row[4] += is_cause
    print("\n| twin | loop | planted | cause right | and first place | clean | same |\n" + "| --- " * 7 + "|")
    for (kind, loop), row in counts.items():
        if kind != "all":
            print(f"| {kind} | {loop} | " + " | ".join(map(str, row)) + " |")
    total = counts["all", ""]
    print("| all | | " + " | ".join(map(str, total)) + " |")
    return total[0] - total[2] + total[3] - total[4]


def said(case: Case, folder: Path) -> Twin | str:
    """What `hypocenter twin` answers, or its error."""
    from twinned import twin

    name = "-".join((case.kind, case.loop, case.fault or "clean"))
    kept = {"kept": folder / f"kept-{case.kind}-{case.loop}", "shared": ("stopped", "uninterrupted")}
    script, *words = case.program
    is_shared = case.kind == "resume" and case.fault not in words
    try:
        return twin(
            CHANGES.get(case.kind, case.kind),
            folder / name,
            script,
            *words,
            **(kept if is_shared else {}),
            **case.options,
        )
    except HypocenterError as error:
        return f"{type(error).__name__}: {error}"


def is_right(case: Case, found: Twin | str) -> tuple[bool, bool]:
    """Whether the cause is what was planted, and the first place where it was."""
    if isinstance(found, str):
        return False, False
    if not case.cause:
        return found.status == "same", found.first is None
    if found.status != "differs" or found.first is None:
        return False, False
    first = {"step": found.first.step, "phase": found.first.phase, "site": found.first.site, "op": found.first.op}
    is_place = all(
        first[name] in wanted if isinstance(wanted, tuple) else first[name] == wanted or _ends(first[name], wanted)
        for name, wanted in case.place.items()
    )
    return found.cause == case.cause, is_place


def _ends(path: object, wanted: str) -> bool:
    return bool(wanted) and str(path).endswith(f".{wanted}")


def shown(first: Place) -> str:
    """Where it is, in a few words."""
    return " ".join(filter(None, (f"step {first.step}", first.phase, first.site, first.op)))


if __name__ == "__main__":
    sys.exit(int(main() > 0))
