"""Findings and evidence in, causes out. Pure: returns plans and verdicts, executes nothing, imports no framework."""
