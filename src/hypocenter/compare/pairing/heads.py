"""How many query groups an attention has: from facts.json, or from shapes that show a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypocenter.compare.comparison import SiteCard
from hypocenter.record.facts_file import Facts

_SIZES = ("head_dim", "hidden_size_per_attention_head", "kv_channels", "d_kv", "key_value_proj_dim")
_GROUPS = (
    "num_key_value_heads", "num_query_groups", "num_query_groups_per_partition", "n_kv_heads", "n_kv_head",
    "kv_num_heads", "num_kv_heads",
)  # fmt: skip
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_attention_heads_per_partition")


def head_sizes(cards: Iterable[SiteCard], *facts: Facts | None) -> list[int]:
    """Sizes that a head may have, the best supported first."""
    votes: Counter[int] = Counter()
    for known in facts:
        for module in known.modules if known else ():
            for name in _SIZES:
                _vote(votes, module.attributes.get(name), 1000)
    for card in cards:
        if card.spot.phase == "forward":
            _shown(votes, card)
        elif card.spot.port == "value" and card.spot.site.endswith(("q_norm.weight", "q_layernorm.weight")):
            _vote(votes, card.shape[-1] if card.shape else None, 10)
    return [size for size, _ in votes.most_common()]


def n_groups(sizes: tuple[int, ...], heads: Iterable[int], *facts: Facts | None) -> int:
    """The number of query groups when q, k and v (or k and v) have these many rows; 0 when not known."""
    key = sizes[-1]
    for size in heads:
        if key % size == 0 and all(total % size == 0 for total in sizes) and sizes[0] % (key // size) == 0:
            return key // size
    names = _GROUPS if sizes[0] != key else (*_GROUPS, *_HEADS)
    for known in facts:
        for module in known.modules if known else ():
            for name in names:
                groups = module.attributes.get(name)
                if isinstance(groups, int) and groups > 0 and all(total % groups == 0 for total in sizes):
                    return groups
    return 0


def _shown(votes: Counter[int], card: SiteCard) -> None:
    """Count what keeps heads apart: cached keys (batch, groups, sequence, head), what core attention takes, angles."""
    shape, port, site = card.shape, card.spot.port, card.spot.site
    if len(shape) == 4 and ("past_key_value" in port or "core_attention" in site or "inner_attention" in site):
        _vote(votes, shape[-1], 10)
    elif len(shape) >= 2 and "rotary" in site and port.startswith("out"):
        _vote(votes, shape[-1], 1)


def _vote(votes: Counter[int], size: object, weight: int) -> None:
    if isinstance(size, int) and not isinstance(size, bool) and size > 1:
        votes[size] += weight
