"""What the live view costs: memory of the server and time of its answers, with many ranks and many who ask.

`python -m bench.view` writes a recording of 1,000 ranks that goes on, serves it in a process of its own, and asks as 50
browsers do for some seconds.
"""
