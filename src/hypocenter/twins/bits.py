"""Runs of a program compared operator by operator, by the bits of all that operators read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypocenter.compare.repeats.answer import Determinism
from hypocenter.config import Config
from hypocenter.twins.answer import NamedRun, Place, Status, Twin
from hypocenter.twins.runs import Made

_STATUS: dict[str, Status] = {"deterministic": "same", "differs": "differs", "cannot-tell": "cannot-tell"}


def recording_bits(
    steps: int, *, deterministic: bool = False, seed: int | None = None, change: tuple[str, ...] = ()
) -> Config:
    """Return options that record digests of all operators, and nothing else."""
    return Config(
        op_bits=True,
        stop_after_step=steps - 1,
        deterministic=deterministic,
        seed=seed,
        change=change,
        replay=False,
        cure="off",
        replicas="never",
        collectives="never",
        agree=False,
    )


def with_failures(found: Determinism, runs: Sequence[Made]) -> Determinism:
    """Add to the answer what the first program that failed has said."""
    failed = next((run for run in runs if run.code), None)
    if failed is None:
        return found
    note = f"{failed.name} ended with exit code {failed.code}: {failed.tail.splitlines()[-1] if failed.tail else ''}"
    found = replace(found, notes=(*found.notes, note))
    return replace(found, why=(*found.why, note)) if found.status == "cannot-tell" else found


def in_bits(found: Determinism, runs: Sequence[Made]) -> Twin:
    """Return the answer of such a comparison in the form of a twin's answer."""
    found = with_failures(found, runs)
    first = found.first
    sentence = found.sentence
    if found.status == "deterministic":
        sentence = f"same: {found.sentence.removeprefix('deterministic: ')}"
    place = (
        None
        if first is None
        else Place(
            step=first.step,
            microbatch=first.microbatch,
            phase=first.phase,
            site=first.site or first.param,
            op=first.op,
            source=first.source,
        )
    )
    return Twin(
        status=_STATUS[found.status],
        sentence=sentence,
        first=place,
        cause=first.cause if first is not None else None,
        confidence=first.confidence if first is not None else "proven",
        why=first.why if first is not None else found.why,
        fix=first.fix if first is not None else "",
        floor_source="bits",
        n_steps=found.n_steps,
        n_rows=found.n_events,
        notes=found.notes,
        repeats=found,
        runs=tuple(NamedRun(name=run.name, path=str(run.directory)) for run in runs),
    )
