"""The screen of `hypocenter weights diff`."""
