"""What the loss-scale diary costs: float16 training under a GradScaler, by the pairs of bench.overhead.

`python -m bench.diary` takes the options of `python -m bench.overhead`; with `--write` its cells go into the same page.
"""
