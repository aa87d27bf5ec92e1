"""A recorded step in, evidence out: executes the step again in place, traces it, adjudicates, tries cures, writes bundles."""
