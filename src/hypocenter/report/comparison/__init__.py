"""In: a Comparison. Out: text. One file per rendering: terminal, json, markdown, github."""
