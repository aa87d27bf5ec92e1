"""Which naming a run speaks, and its sites in canonical names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import SiteCard
from hypocenter.compare.naming.tables import Table, leaf_of, tables, unwrapped
from hypocenter.compare.pairing.layouts import is_parameter
from hypocenter.compare.pairing.ports import canonical_port, direction

_LEAST_KNOWN = 3  # sites a table must know before it is believed
_VOCABULARY = re.compile(r"^(|embed\.tokens(\.weight)?|head(\.weight|\.bias)?)$")
_VOCABULARY_NAMES = re.compile(
    r"(^|\.)(embed_tokens|word_embeddings|tok_embeddings|wte|shared|embed_in|lm_head|output_layer|embed_out)(\.\w+)?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a spot is, whatever it is called: the canonical module or parameter that it belongs to."""

    name: str
    known: bool  # by the table; otherwise the name is the site's own, without wrappers


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The naming scheme that one run uses."""

    table: Table | None
    prefix: str = ""  # in front of all its names
    swallowing: frozenset[str] = frozenset()  # paths of modules that hold a norm and the linear after it in one

    @property
    def name(self) -> str:
        """The name of the table, or "own" when no table knows these names."""
        return self.table.name if self.table else "own"

    def path(self, site: str) -> str:
        """Return the site as the table writes it: without wrappers and without the prefix."""
        plain = unwrapped(site)
        return plain[len(self.prefix) :] if plain.startswith(self.prefix) else plain

    def role(self, card: SiteCard) -> Role:
        """Return the canonical name of the module or parameter that a spot belongs to."""
        if card.spot.phase == "data":
            return Role(name=canonical_port(_as_port(card.spot.site)), known=True)
        path = self.path(card.spot.site)
        found = self._known(path, card)
        return Role(name=_own(path, card) if found is None else found, known=found is not None)

    def aliases(self, card: SiteCard) -> list[str]:
        """Return canonical names of the other names of a shared module or parameter."""
        if not self.table:
            return [self.path(name) for name in card.names]
        known = (self._known(self.path(name), card) for name in card.names)
        return [name for name in known if name is not None]

    def is_sequence_first(self, name: str) -> bool:
        """Return whether the activations of a canonical module are (sequence, batch, ...)."""
        return bool(self.table) and self.table.is_sequence_first(name)

    def _known(self, path: str, card: SiteCard) -> str | None:
        if self.table is None or card.module.startswith("Identity"):  # Megatron's IdentityOp stands where nothing is
            return None
        if is_parameter(card):
            return self.table.parameter(path)
        return self.table.observed(path, direction(card.spot.port).removeprefix("grad_"), self.swallowing)


def naming_of(cards: Iterable[SiteCard]) -> Naming:
    """Return the naming that knows most of these sites; own names when none knows at least three."""
    cards = list(cards)
    seen = dict.fromkeys((unwrapped(card.spot.site), is_parameter(card)) for card in cards)
    sites = [(site, parameter) for site, parameter in seen if site]
    best, most = Naming(table=None), _LEAST_KNOWN - 1
    for table in tables().values():
        for prefix in _prefixes(table, [site for site, _ in sites]):
            known = sum(
                _knows(table, site[len(prefix) :], parameter) for site, parameter in sites if site.startswith(prefix)
            )
            if known > most:
                best, most = Naming(table=table, prefix=prefix), known
    return replace(best, swallowing=_swallowing(best, cards))


def _swallowing(naming: Naming, cards: Iterable[SiteCard]) -> frozenset[str]:
    table = naming.table
    if table is None or not table.swallowed:
        return frozenset()
    paths = {(naming.path(card.spot.site), card.module) for card in cards}
    found = {path for path, kind in paths if table.swallows(path, kind)}
    return frozenset(path.rpartition(".")[0] if "layer_norm_" in path else path for path in found)


def is_vocabulary(name: str) -> bool:
    """Return whether a canonical module or parameter has a vocabulary dimension, which may be padded."""
    return bool(_VOCABULARY.match(name))


def sounds_like_vocabulary(site: str) -> bool:
    """Return whether a name, of any naming, sounds as if one dimension were the vocabulary."""
    return bool(_VOCABULARY_NAMES.search(site)) or not site


def _own(path: str, card: SiteCard) -> str:
    """Return the name of what no table knows; the last part of a parameter is named as in torch."""
    module, dot, leaf = path.rpartition(".")
    return f"{module}{dot}{leaf_of(leaf)}" if is_parameter(card) else path


def _as_port(site: str) -> str:
    """Return the port that takes in a field of a batch: `batch.input_ids` becomes `in[input_ids]`."""
    name = site.removeprefix("batch.")
    return name if name.startswith("in[") else f"in[{name}]"


def _knows(table: Table, path: str, parameter: bool) -> bool:
    return (table.parameter(path) if parameter else table.module(path)) is not None


def _prefixes(table: Table, sites: Sequence[str]) -> list[str]:
    """Return what may stand in front: the table's prefixes, and first one or two parts that many sites share."""
    heads: dict[str, int] = {}
    for site in sites:
        parts = site.split(".")
        for n in (1, 2):
            if len(parts) > n:
                head = ".".join(parts[:n]) + "."
                heads[head] = heads.get(head, 0) + 1
    common = [head for head, n in sorted(heads.items()) if 2 * n > len(sites)]
    return list(dict.fromkeys([*table.prefixes, *common]))
