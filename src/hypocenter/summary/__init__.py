"""In: tensors of any framework (reducers, loaded by full path). Out: `Summary`, a monoid, and what it answers."""

from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge, merge_all

__all__ = ["Summary", "merge", "merge_all"]
