"""A small model's millions of steps through the real writer: sizes, memory, and what of them can still be told."""
