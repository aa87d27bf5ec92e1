"""How long thousands of ranks take to find together and to agree, by the real protocol over a store and wires that only
count and add up time: `python -m bench.agreement`.
"""
