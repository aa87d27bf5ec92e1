"""What a checklist compares: one TOML file per group of items in, items with their manual pages out."""
