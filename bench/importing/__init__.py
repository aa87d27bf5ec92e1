"""How long an import of a large dump takes, and how much memory."""
