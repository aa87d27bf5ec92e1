"""A checklist on the screen, as JSON, as Markdown, and the manual pages of its items."""
