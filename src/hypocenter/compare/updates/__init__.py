"""In: recordings of level `tensors`. Out: every optimizer step done again in float64, and why two sides' differ."""
