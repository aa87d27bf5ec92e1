"""In: readings and step records of a running program. Out: a run directory that survives SIGKILL, and its reader."""
