"""Settings that change numbers: which are set here, what each changes, and are they equal on every rank?

What is known of each is a row of `tables/settings.toml`; a snapshot is plain data that ranks can send each other.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from hypocenter.doctor.answer import Check, CheckStatus
from hypocenter.doctor.machine import Machine, version_table
from hypocenter.in_words import some
from hypocenter.manual import Manual, parse

Kind = Literal["variable", "switch"]
Matters = Literal["numbers", "order", "speed"]
_RESULT = {"numbers": "other numbers", "order": "sums in another order", "speed": "speed only"}
_MOST_NAMED = 8  # ranks named in one sentence
_FEW = 2  # ranks that are named rather than called the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table of settings."""

    name: str  # of a variable, or of a switch below torch.backends; `*` stands for any characters
    kind: Kind
    matters: Matters
    changes: str
    default: str
    source: str
    aligning: tuple[str, ...] = ()  # good values when two runs are to be compared
    alarms: tuple[str, ...] = ()  # values that deserve a warning
    per_rank: bool = False  # ranks may differ
    together: bool = False  # ranks that differ hang, or exchange wrong pieces

    def alarms_at(self, value: str) -> bool:
        """Return whether the value deserves a warning."""
        return any(fnmatchcase(value.strip().lower(), alarm.lower()) for alarm in self.alarms)


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Return all rows, in the order of the table."""
    rows = (
        {"kind": kind, "name": name, **row}
        for kind, of in version_table("settings").items()
        for name, row in of.items()
    )
    return msgspec.convert(tuple(rows), type=tuple[Setting, ...])


def described(name: str, kind: Kind) -> Setting | None:
    """Return the first row that fits a name; None when none does."""
    return next((row for row in settings() if row.kind == kind and fnmatchcase(name, row.name)), None)


def snapshot(environ: Mapping[str, str] | None = None, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what one rank has set, as plain data.

    Args:
        environ: its environment; `os.environ` when None.
        facts: what hypocenter.examine.torch_facts says in it; without, torch's switches and versions are left out.
    """
    environ, facts = os.environ if environ is None else environ, facts or {}
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    versions |= {name: str(facts[key]) for name, key in _VERSIONS.items() if facts.get(key)}
    return {
        "variables": {name: value for name, value in sorted(environ.items()) if described(name, "variable")},
        "switches": {name: _word(value) for name, value in (facts.get("switches") or {}).items()},
        "versions": versions,
    }


_VERSIONS = {"torch": "version", "CUDA": "cuda", "cuDNN": "cudnn", "NCCL": "nccl"}


def examine_settings(machine: Machine) -> Iterator[Check]:
    """Yield a check for each variable that is set and changes numbers, one for torch's switches, one for the rest."""
    taken = snapshot(machine.environ, machine.torch)
    rest: list[str] = []
    for name, value in taken["variables"].items():
        row = described(name, "variable")
        if row is not None and (row.matters != "speed" or row.alarms_at(value)):
            yield _of_variable(name, value, row, machine)
        elif row is not None:
            rest.append(name)
    if machine.has_torch:
        yield _of_switches(taken["switches"], machine)
    if rest:
        yield _check("setting.speed", "other variables", "ok", f"{', '.join(rest)}: change speed, not numbers", machine)


def compare(snapshots: Mapping[int, Mapping[str, Any]]) -> Iterator[Check]:
    """Yield what differs between ranks, each with the ranks that stand alone; else one check that all is equal.

    Args:
        snapshots: by rank, as `snapshot` makes them. A rank without switches or versions was not asked for them.
    """
    if len(snapshots) < 2:
        return
    n_equal, found = 0, list[Check]()
    for part, kind in (("variables", "variable"), ("switches", "switch"), ("versions", "version")):
        names = {name for taken in snapshots.values() for name in taken.get(part, {})}
        for name in sorted(names):
            told = {
                r: taken.get(part, {})
                for r, taken in snapshots.items()
                if name in taken.get(part, {}) or kind == "variable"
            }
            values = {rank: str(settled.get(name, "not set")) for rank, settled in told.items()}
            row = described(name, kind) if kind != "version" else None  # type: ignore[arg-type]
            if len(values) < 2:
                continue
            if len(set(values.values())) == 1 or (row is not None and row.per_rank):
                n_equal += 1
            else:
                found.append(_difference(name, kind, values, row))
    yield from sorted(found, key=lambda one: one.status != "problem")
    if not found:
        what = f"{n_equal} settings and versions are equal on {len(snapshots)} ranks"
        yield Check(
            code="setting.equal-on-every-rank", area="settings", title="equal on every rank", status="ok", what=what
        )


def manuals() -> dict[str, Manual]:
    """Return a page for each row, by code (`setting.NCCL_ALGO`), and for what is said of several together."""
    of_several = {"setting.torch-switches": _of_switches, "setting.equal-on-every-rank": _difference}
    pages = {code: parse(function.__doc__) for code, function in of_several.items()}
    return {**pages, **{f"setting.{row.name}": _page(row) for row in settings()}}


def _of_variable(name: str, value: str, row: Setting, machine: Machine) -> Check:
    good = any(value.strip().lower() == one.lower() for one in row.aligning)
    status: CheckStatus = "warning" if row.alarms_at(value) else "ok"
    what = f"{name}={value} ({row.changes})"
    why = f"{_RESULT[row.matters]}; the default: {row.default}"
    fix = (f"export {name}={row.aligning[0]}",) if status == "warning" and row.aligning else ()
    fix = fix or ((f"unset {name}",) if status == "warning" else ())
    evidence = {"value": value, "matters": row.matters, "good_when_aligning": good, "source": row.source}
    return _check(f"setting.{row.name}", name, status, what, machine, why if status == "warning" else "", fix, evidence)


def _of_switches(switches: Mapping[str, str], machine: Machine) -> Check:
    """torch's switches that change numbers, as a fresh process has them.

    What it means
        What a program starts from, before its own code sets anything: TF32, sums in reduced precision, deterministic
        algorithms, the number of threads.

    How it is decided
        They are read in a child process. A value that is in itself a warning (TF32 on for matrix products,
        cudnn.benchmark on) is one: something set it before the program did.

    What to do
        Look for a variable or a sitecustomize that sets it; set it in the program, where everybody sees it.

    When it is wrong
        When the program sets it itself: `hypocenter checklist` compares what two programs do.
    """
    rows = {name: row for name in switches if (row := described(name, "switch")) is not None}
    alarming = [name for name, row in rows.items() if row.alarms_at(switches[name])]
    evidence = {"switches": dict(switches)}
    if alarming:
        first = rows[alarming[0]]
        told = ", ".join(f"{name} is {switches[name]}" for name in alarming)
        return _check(
            "setting.torch-switches", "torch's switches", "warning", f"in a fresh process, {told}", machine,
            f"{first.changes}; something sets it before the program does: a variable, or a sitecustomize",
            ("python -c 'import torch; print(torch.backends.cuda.matmul.allow_tf32)'",), evidence,
        )  # fmt: skip
    tf32 = switches.get("cudnn.allow_tf32") == "true"
    reduced = [
        name
        for name in ("fp16", "bf16")
        if switches.get(f"cuda.matmul.allow_{name}_reduced_precision_reduction") == "true"
    ]
    words = [
        f"float32 products {switches.get('float32_matmul_precision', 'highest')}",
        *([f"TF32 {'on' if tf32 else 'off'} for convolutions"] if machine.torch.get("cuda") else []),
        *([f"reduced-precision sums for {' and '.join(reduced)}"] if reduced and machine.torch.get("cuda") else []),
        f"deterministic algorithms {'on' if switches.get('deterministic_algorithms') == 'true' else 'off'}",
        "1 thread" if switches.get("threads") == "1" else f"{switches.get('threads', '?')} threads",
    ]
    what = f"a fresh process has: {', '.join(words)}"
    return _check("setting.torch-switches", "torch's switches", "ok", what, machine, evidence=evidence)


def _difference(name: str, kind: str, values: Mapping[int, str], row: Setting | None) -> Check:
    """A setting or version is not the same on every rank.

    What it means
        Ranks that round otherwise drift apart: replicas of one parameter are not equal any more. NCCL_ALGO and its like
        must be the same, or the job hangs.

    How it is decided
        With `--comm` each rank sends its variables, torch's switches and versions; they are compared by name. What
        changes results, a version, or what has to be set together is a problem; what changes the order of sums on one
        rank only is a warning. Addresses, interfaces and paths may differ.

    What to do
        Export the same value in the script that starts the job on every node.

    When it is wrong
        When nodes differ on purpose, such as their number of cores.
    """
    counts = Counter(values.values())
    usual, n_usual = counts.most_common(1)[0]
    odd = [rank for rank, value in values.items() if value != usual]
    others = ", ".join(sorted({values[rank] for rank in odd}))
    matters = row.matters if row is not None else ("numbers" if kind == "version" else "order")
    same = [rank for rank, value in values.items() if value == usual]
    few = len(same) <= _FEW
    is_split = n_usual * 2 <= len(values)
    fix: tuple[str, ...] = ()
    if kind == "variable":
        value = row.aligning[0] if is_split and row is not None and row.aligning else usual
        fix = (f"unset {name}" if value == "not set" else f"export {name}={value}",)
        fix = (f"{fix[0]}  # on every rank",)
    return Check(
        code="setting.equal-on-every-rank", area="settings", title=name,
        status="problem" if matters == "numbers" or (row is not None and row.together) else "warning",
        what=f"{name} is {others} on {_ranks(odd)}, and {usual} on {_ranks(same) if few else f'the other {n_usual}'}",
        why=f"{row.changes}: {_RESULT[matters]}" if row is not None else "ranks that compute otherwise drift apart",
        fix=fix, rank=odd[0] if len(odd) == 1 else None,
        evidence={"kind": kind, "values": {str(rank): value for rank, value in values.items()}},
    )  # fmt: skip


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {some(ranks, _MOST_NAMED)}"


def _check(
    code: str, title: str, status: CheckStatus, what: str, machine: Machine, why: str = "", fix: tuple[str, ...] = (),
    evidence: dict[str, Any] | None = None,
) -> Check:  # fmt: skip
    return Check(
        code=code, area="settings", title=title, status=status, what=what, why=why, fix=fix, host=machine.host,
        evidence=evidence or {},
    )  # fmt: skip


def _page(row: Setting) -> Manual:
    kind = "A variable of the environment" if row.kind == "variable" else "A switch of torch, as a fresh process has it"
    good = f"Set it to {' or '.join(row.aligning)}" if row.aligning else "Set it to the same value"
    return Manual(
        message=f"{_capital(row)}.",
        sections=(
            ("What it means", f"{kind}. It changes {_WORDS[row.matters]}. When it is not set: {row.default}."),
            ("How it is decided", f"It is looked up, and compared between ranks with --comm. {_alarms(row)}".strip()),
            ("What to do", f"{good} on both sides when two runs are to be compared, and on every rank of one."),
            ("When it is wrong", f"When the program sets it itself, later. Source: {row.source}."),
        ),
    )


def _capital(row: Setting) -> str:
    """Return the sentence with a capital, unless it begins with a value."""
    is_value = row.changes.partition(" ")[0].strip(",") in (*row.aligning, *row.alarms)
    return row.changes if is_value else f"{row.changes[:1].upper()}{row.changes[1:]}"


_WORDS = {"numbers": "results", "order": "the order of sums, and so their last bits", "speed": "speed, not results"}


def _alarms(row: Setting) -> str:
    return f"A value of {' or '.join(row.alarms)} is a warning." if row.alarms else ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
