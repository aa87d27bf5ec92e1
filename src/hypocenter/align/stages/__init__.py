"""The stages of an alignment, in order: one file = one stage, a function of what was recorded to what it means.

They do not know each other: what an earlier one found is in the context.
"""
