"""All planted plans of `hypocenter align`, and docs/align-cases.md from them."""
