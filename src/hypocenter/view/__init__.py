"""In: run directories, also of runs that go on. Out: a read-only server of pages that follow them (docs/view.md)."""
