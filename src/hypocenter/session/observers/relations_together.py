"""Relations of a model that computes on several ranks together are looked at by all of them, at the same boundary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypocenter.relations.check import Looked
from hypocenter.relations.exchanged import Before, exchanged
from hypocenter.relations.relation import PARTS_OF_SAMPLES
from hypocenter.relations.subject import Subject
from hypocenter.relations.together import LOST, Channel, Leader, follow
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.jointly import agree
from hypocenter.session.observer import Context, Update


def look_together(
    context: Context,
    update: Update,
    subject_of: Callable[[], Subject],
    ask: Callable[[Subject], Looked],
    why: str,
    before: Before,
) -> Looked | str:
    """Let all ranks look at relations of the last micro-batch. To be called on all of them at the same boundary.

    Args:
        subject_of: makes it of the micro-batch of this rank.
        ask: on the first rank.
        before: what this rank was given at the look before.
        why: nothing can be asked on this rank; "": something can.

    Returns:
        What the first rank has found, or why nothing was asked; "" on the others.

    Raises:
        ReplayImpossible: with the reason, which no look at a later step will change.
    """
    table, replayer = context.council.table(), context.replayer
    if (groups := table.groups()) is None:
        raise ReplayImpossible(LOST)
    channel, looked, subject = Channel(table, replayer, groups), "", None
    problem: Exception | None = None
    try:
        with replayer.together(groups) as whole:
            why = why or replayer.why_not(update.microbatches[-1])
            if not why:
                try:
                    subject = subject_of()
                except Exception as error:  # the others are still to be told
                    why = f"it cannot be done again ({type(error).__name__}: {str(error)[:200]})"
            agreement = agree(replace(table, groups=lambda: groups), whole, len(update.microbatches), 0, why)
            if agreement.why_not or subject is None:
                return agreement.why_not or why
            try:
                rank = context.rank()[0]
                looked = _led(channel, subject, ask) if rank == 0 else ""
                is_asked = _may_exchange(looked) if isinstance(looked, Looked) else follow(channel, subject)
                found = exchanged(channel, subject, rank, before, is_asked=is_asked)
                if found is not None and isinstance(looked, Looked):
                    looked.losses.append(found)
            except Exception as error:
                problem = error
                channel.close()  # who waits for this rank is told
            if channel.is_true_for_any(problem is not None) and not isinstance(looked, Looked):
                raise problem or ReplayImpossible(LOST)
            return looked
    finally:
        channel.close()


def _led(channel: Channel, subject: Subject, ask: Callable[[Subject], Looked]) -> Looked:
    """Ask; whatever comes of it, the others are told that it is over."""
    subject.lead = leader = Leader(channel, subject)
    looked = None
    try:
        looked = ask(subject)
        return looked
    finally:
        subject.lead = None
        leader.end(may_exchange=looked is not None and _may_exchange(looked))


def _may_exchange(looked: Looked) -> bool:
    """Return whether ranks are known to hold samples of their own, not parts of the same ones, and there is time."""
    return not looked.no_time and "samples" in looked.held and PARTS_OF_SAMPLES not in looked.notes
