"""The catalogue of formats: one file each, with `suffix` and `render(recording, diagnosis) -> str`."""
