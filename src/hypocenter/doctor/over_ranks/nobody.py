"""Answers of a rank that has nothing of the others: no store, no word, or its own child is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hypocenter.doctor.answer import Check, CheckStatus
from hypocenter.doctor.job import Place
from hypocenter.doctor.over_ranks.reports import last_words

if TYPE_CHECKING:
    from hypocenter.doctor.communication import Examined

CODE, TITLE = "comm.rendezvous", "rendezvous"


def unreachable(here: Place, text: str) -> Examined:
    """The store did not answer."""
    at = f"{here.host}:{here.port}"
    if here.rank == 0:
        return _examined(here, f"rank 0 could not open its store at {at}: {text}", "another process has this port", ())
    return _examined(
        here,
        f"rank {here.rank} reaches no store at {at}: {text}",
        "rank 0, or torchrun's agent, has not opened it, or this host does not reach that one",
        (f"nc -vz {here.host} {here.port}", "ip -brief address"),
        missing=() if here.launcher == "torchrun" else (0,),
    )


def no_meeting_place(here: Place) -> Examined:
    """The launcher does not say where the ranks meet."""
    return _examined(
        here,
        "MASTER_ADDR is not set",
        f"{here.launcher or 'the launcher'} does not say where rank 0 is",
        ("export MASTER_ADDR=$(hostname) MASTER_PORT=29500  # on every rank: the host of rank 0",),
        status="cannot-tell",
    )


def no_word(here: Place, at: str, tail: Sequence[str]) -> Examined:
    """The time is up, and this rank's own child has not come back."""
    return _examined(
        here,
        f"the time was up while rank {here.rank} was {at}",
        last_words(tail) if tail else "the others were not heard of; a longer --timeout may show more",
        (),
    )


def died_alone(here: Place, died: Mapping[str, Any]) -> Examined:
    """The child of this rank ended, and so did the one that should have told the others."""
    how = f"signal {died['signal']}" if died.get("signal") else f"exit code {died.get('code')}"
    tail = [str(line) for line in died.get("tail", [])]
    if any("No module named 'torch'" in line for line in tail):
        return _examined(
            here,
            "torch is not installed here",
            "communication and arithmetic are examined with it",
            ("pip install torch",),
            status="cannot-tell",
        )
    return _examined(
        here,
        f"the examination of rank {here.rank} ended with {how} while {died.get('at')}",
        last_words(tail),
        (),
        evidence={"tail": tail},
    )


def _examined(
    here: Place,
    what: str,
    why: str,
    fix: tuple[str, ...],
    *,
    missing: tuple[int, ...] = (),
    status: CheckStatus = "problem",
    evidence: dict[str, Any] | None = None,
) -> Examined:
    from hypocenter.doctor.communication import Examined

    check = Check(
        code=CODE,
        area="communication",
        title=TITLE,
        status=status,
        what=what,
        why=why,
        fix=fix,
        rank=here.rank,
        evidence=evidence or {},
    )
    return Examined((check,), missing, here.n_ranks)
