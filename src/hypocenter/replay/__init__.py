"""A recorded step in, evidence out: executes it again in place, traces, adjudicates, tries cures, writes bundles."""
