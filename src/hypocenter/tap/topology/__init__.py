"""Who tells where this rank stands: one file per source. None of them communicates; all read what the process knows."""
