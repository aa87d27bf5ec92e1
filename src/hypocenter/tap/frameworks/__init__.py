"""One file per framework that needs more than torch's own hooks: `needs`, and `attach(session) -> undo`."""
