"""A rule and a cause of your own. Nothing is imported here: Hypocenter imports the files that its entry points name."""
