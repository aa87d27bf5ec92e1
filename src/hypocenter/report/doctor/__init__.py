"""What `hypocenter doctor` says, one file = one rendering: terminal, json."""
