"""In: a recording of level `tensors`. Out: the values of a spot, block by block, laid out as the other side's are."""
