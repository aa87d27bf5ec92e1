"""What each level and each peer costs: process CPU time of whole training steps, with the tool against without it.

`python -m bench.overhead` starts one worker process with a tool and one without, lets them take turns at the same
steps, and prints the median of the paired ratios as a Markdown table.
"""
