"""In: modules, optimizers and settings of a running program. Out: `record.facts_file.Facts`, without its tensors."""
