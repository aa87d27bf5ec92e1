"""Rows that Hypocenter writes for itself: what its rules measured of a program, beside the values of the program.

The one place that knows which they are. Each kind is documented where its names stand: misuse, update_rows,
microbatch_rows, replica_rows here, sdc_rows and agreement in hypocenter.session, and in docs/format.md.
"""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect import law_rows, microbatch_rows, relation_rows, replica_rows, update_rows
from hypocenter.nouns import Phase

COLUMNS = ("phase", "site", "port")
"""What `is_bookkeeping` looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Rows of one kind. A module or parameter of the program may have the same name, in another phase or port."""

    phases: tuple[Phase, ...]
    site: str  # a name; one that ends in a dot stands for all names that begin so
    port: str = ""  # any, when empty


_BY_SITE = (
    _Kind(phases=("optimizer", "scaler"), site="misuse.", port="value"),
    _Kind(phases=("data",), site=replica_rows.RNG_PREFIX, port=replica_rows.RNG_PORT),
    _Kind(phases=("data",), site=replica_rows.LOADER),
    _Kind(phases=("data",), site=replica_rows.ATTEMPT),
    _Kind(phases=("param",), site="replicas.rewritten", port="value"),
    _Kind(phases=("param",), site="replicas.unwrapped", port="value"),
    _Kind(phases=("comm",), site="sdc"),
    _Kind(phases=("comm",), site="agreement", port="value"),
    _Kind(phases=("optimizer",), site=microbatch_rows.LABEL_WEIGHT, port="value"),
)
_BY_PORT = pa.array([
    microbatch_rows.RECOMPUTE_ZEROS, microbatch_rows.RECOMPUTE_GAP, microbatch_rows.RECOMPUTE_IN,
    microbatch_rows.NOT_ADDED, microbatch_rows.N_LABELS, microbatch_rows.LOSS_SHARE, microbatch_rows.TOKEN_GAP,
    update_rows.UPDATE_LOST, update_rows.UPDATE_ULPS, update_rows.PARAMS_STUCK, update_rows.GRAD_SHARE,
    update_rows.LR_SHARE, update_rows.STEP_COUNTER, update_rows.STEP_MOVED, update_rows.MOMENT_LOST,
    update_rows.MOMENT_RATIO, update_rows.MOMENTS_WRONG, update_rows.EMA_LOST, update_rows.ACCUMULATED,
    update_rows.ADDITION_LOST, update_rows.HYPER, update_rows.HYPER_ROUNDED, update_rows.HEAD_GAP, replica_rows.PARAM,
    law_rows.BALANCED, law_rows.CHANGED, law_rows.UNBALANCED, law_rows.NOT_CONSUMED, law_rows.NO_GRADIENT,
    law_rows.NOT_STEPPED, law_rows.MADE, law_rows.PART, law_rows.USED, law_rows.USED_TWICE, law_rows.NOT_USED,
    law_rows.THROWN_AWAY, law_rows.UNWRITTEN, law_rows.NOT_BY_RULE, law_rows.OVERLAPS, law_rows.IN_EVALUATION,
    law_rows.CLIPPED_IN_VAIN, law_rows.STATE_LOST, law_rows.CLIPPED_IN_PART, law_rows.INEXACT, law_rows.WRAPPED,
    law_rows.CONSTANT, law_rows.OF_ANOTHER, law_rows.NEVER_USED,
    law_rows.CUT_OFF, law_rows.NEVER, law_rows.SAME_DRAWS, law_rows.ALIKE, law_rows.NOT_LOADED, law_rows.CHANGED_AFTER,
    law_rows.WRITTEN_OVER, law_rows.NOT_BROUGHT_BACK, law_rows.NOT_SAVED, law_rows.MOVED, law_rows.FORGETS,
    law_rows.CARRIED,    law_rows.OWN_AVERAGE, law_rows.OWN_REFERENCE,
    law_rows.FROZEN_WRITTEN, law_rows.FROZEN_STATISTICS, law_rows.STATE_OF_ANOTHER, law_rows.GIVEN_CHANGED,
    law_rows.OWN_COPY, law_rows.JOINED, law_rows.DATA_SET,
    law_rows.UNTIED, law_rows.HUNG_TWICE, law_rows.TWO_HANDS, law_rows.COUNTED, law_rows.CANCELLED,
    relation_rows.RELATION, relation_rows.LOSS, relation_rows.LOOKED,
])  # fmt: skip


def is_bookkeeping(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return for each row whether Hypocenter wrote it for itself. `rows` has COLUMNS."""
    found = pc.or_(pc.is_in(rows["port"], value_set=_BY_PORT), pc.starts_with(rows["port"], replica_rows.STATE_PREFIX))
    for kind in _BY_SITE:
        named = pc.starts_with if kind.site.endswith(".") else pc.equal
        of_kind = pc.and_(named(rows["site"], kind.site), pc.is_in(rows["phase"], value_set=pa.array(kind.phases)))
        found = pc.or_(found, pc.and_(of_kind, pc.equal(rows["port"], kind.port)) if kind.port else of_kind)
    return found


def holds_values(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return for each row whether it tells of values (a digest alone does not). Needs n_hist, absmax, sumsq, digest."""
    is_empty = pc.and_(
        pc.equal(rows["n_hist"], 0), pc.and_(pc.equal(rows["absmax"], 0.0), pc.equal(rows["sumsq"], 0.0))
    )
    return pc.invert(pc.and_(is_empty, pc.is_valid(rows["digest"])))
