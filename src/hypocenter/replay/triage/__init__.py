"""Hardware or software: the same micro-batch again, here and on a neighbour; every op against float64 on the CPU."""
