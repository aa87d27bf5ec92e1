"""Checks in, the answer out: problems first, a status, one sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from hypocenter.doctor.answer import Answer, Area, Check, Status
from hypocenter.in_words import counted, some

_ORDER = {"problem": 0, "warning": 1, "cannot-tell": 2, "ok": 3, "not-applicable": 4}
_AREAS: tuple[Area, ...] = ("itself", "toolkits", "settings", "communication", "arithmetic")
_MOST_NAMED = 3  # problems named in the sentence


def answer(
    checks: Iterable[Check],
    *,
    asked: Collection[Area] = (),
    n_ranks: int = 1,
    missing: tuple[int, ...] = (),
    notes: tuple[str, ...] = (),
) -> Answer:
    """Put all checks together to an answer, problems first.

    Args:
        asked: areas that were asked for by name: if nothing of one could be checked, the answer is `cannot-tell`.
    """
    named = (replace(one, host=one.host or None) for one in checks)
    found = tuple(sorted(named, key=lambda one: (_ORDER[one.status], _AREAS.index(one.area))))
    status = _status(found, asked, missing)
    return Answer(
        status=status, sentence=_sentence(found, status, asked, n_ranks, missing), checks=found, ranks=n_ranks,
        missing=missing, notes=notes,
    )  # fmt: skip


def _status(checks: tuple[Check, ...], asked: Collection[Area], missing: tuple[int, ...]) -> Status:
    if missing or any(one.status == "problem" for one in checks):
        return "problems"
    told = {one.area for one in checks if one.status in ("ok", "warning")}
    return "cannot-tell" if not told or not told.issuperset(asked) else "healthy"


def _sentence(
    checks: tuple[Check, ...], status: Status, asked: Collection[Area], n_ranks: int, missing: tuple[int, ...]
) -> str:
    n_of = {name: sum(one.status == name for one in checks) for name in _ORDER}
    n_told = n_of["ok"] + n_of["warning"] + n_of["problem"]
    hosts = {one.host for one in checks if one.host}
    where = f" on {next(iter(hosts))}" if len(hosts) == 1 else f" on {len(hosts)} machines" if hosts else ""
    where += f", {n_ranks} ranks" if n_ranks > 1 else ""
    tail = f"; {counted(n_of['warning'], 'warning')}" if n_of["warning"] else ""
    tail += f"; {counted(n_of['cannot-tell'], 'check')} could not tell" if n_of["cannot-tell"] else ""
    if status == "problems":
        named = list(dict.fromkeys(one.title for one in checks if one.status == "problem"))
        absent = [f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(map(str, missing))} never answered"]
        told = [*(absent if missing else []), *([some(named, _MOST_NAMED)] if named else [])]
        n = max(n_of["problem"], 1)
        return f"{counted(n, 'problem')} in {counted(n_told, 'check')}{where}: {', '.join(told)}{tail}"
    if status == "cannot-tell":
        untold = [area for area in _AREAS if area in asked]
        return f"cannot tell: nothing about {' and '.join(untold) or 'this machine'} could be checked{where}"
    return f"healthy: {counted(n_told, 'check')}{where}{tail}"
