"""In: a program and one thing that must not matter. Out: two runs, and the first place where they part."""
