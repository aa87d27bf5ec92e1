"""In: tensors of any framework (reducers, loaded by full path). Out: `Summary`, a monoid, and what it answers."""
