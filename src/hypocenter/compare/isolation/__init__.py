"""In: what a baseline's module took in and gave. Out: whether the candidate's module would have given the same."""
