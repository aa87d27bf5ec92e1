"""Full tensors that stand for sharded parameters while a step is done again: ZeRO-3's and FSDP1's.

Such a model cannot be called for a replay: its hooks would move the state that training goes on with. So the modules
get stand-ins for their parameters and lose the framework's hooks until the replay is over; what an operation reads is
gathered, by all ranks together, when it is first read. One file per framework says what is to be gathered from where.
"""
