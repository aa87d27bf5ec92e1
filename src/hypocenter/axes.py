"""The axes along which the ranks of a job are laid out, in the field's words.

dp: data parallel, other batches (or shards of the parameters: FSDP, ZeRO). tp: tensor parallel, parts of a layer.
pp: pipeline, other layers. cp: context parallel, parts of the sequence. ep: expert parallel, other experts.
"""

from __future__ import annotations

WORDS = {
    "tp": "tensor-parallel", "pp": "pipeline", "dp": "data-parallel", "cp": "context-parallel", "ep": "expert-parallel",
}  # fmt: skip
"""What each is called in a sentence, in the order in which coordinates are told."""

AXES = tuple(WORDS)

OUTER_FIRST = ("dp", "cp", "ep", "tp", "pp")
"""From those that cut the batch to those that cut the model: as placements are written (docs/format.md)."""

HOLD_COPIES = ("dp", "cp", "tp")
"""Along these a tensor may be the same on every rank; along ep and pp it is another one."""
