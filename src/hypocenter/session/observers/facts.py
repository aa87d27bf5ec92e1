"""facts.json: what the program is made of, written at the first update of each optimizer."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from hypocenter.record.facts_file import Facts, OptimizerFacts, read_facts, write_facts
from hypocenter.record.layout import rank_directory
from hypocenter.session.claims import claims
from hypocenter.session.facts.modules import module_facts
from hypocenter.session.facts.optimizers import optimizer_facts
from hypocenter.session.facts.settings import settings
from hypocenter.session.observer import Context, Observer, Update

MAX_OPTIMIZERS = 16  # updates of new ones at which all is read again; a program may make one per step


class FactsKeeper(Observer):
    """Reads modules, optimizers and settings once; holds none of them."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: list[OptimizerFacts] = []

    def before_update(self, update: Update) -> None:
        """The program is complete: its models have been called, its optimizer holds its parameters."""
        context = self.context
        if context.directory is None or update.optimizer in self._seen or len(self._optimizers) >= MAX_OPTIMIZERS:
            return
        if not claims(context.directory, "torch"):
            return
        self._seen.add(update.optimizer)
        self._optimizers.append(optimizer_facts(update.optimizer, context.names))
        place = context.place()
        event = next((e for e in context.tape.events if e.module is not None), None)
        facts = Facts(
            modules=module_facts(context.names, tp=len(place.groups.get("tp", ())) or 1),
            optimizers=tuple(self._optimizers),
            settings=settings(
                place,
                event.ambient if event is not None else None,
                n_microbatches=len(update.microbatches),
                loss_scale=update.scaled.state.scale if update.scaled is not None else None,
            ),
        )
        folder = rank_directory(context.directory, context.rank()[0])
        folder.mkdir(parents=True, exist_ok=True)
        known = read_facts(folder) if len(self._optimizers) > 1 else None
        write_facts(folder, replace(facts, calls=known.calls) if known is not None else facts)
