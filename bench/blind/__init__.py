"""Programs with a fault that stays finite, by someone who had not read the rules; each with a healthy twin.

They were written on 27 November 2026 after bugs of the field, before any rule or law was looked at, and are kept as
they were written. The environment's FAULT=0 makes the twin.
"""
