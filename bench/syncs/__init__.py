"""How often a watched step makes the host wait for the device, beside the step itself, by level and by feature.

Counted on the test device of tests/devices, which has the waits of an accelerator and computes on the CPU.
"""
