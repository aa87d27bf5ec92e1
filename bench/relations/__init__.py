"""How many leaks the relations find, and whether they accuse healthy models."""
