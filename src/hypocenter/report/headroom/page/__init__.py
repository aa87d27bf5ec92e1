"""The page of an answer: its shell, style and script."""
