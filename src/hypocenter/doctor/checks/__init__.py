"""One file = one check of a machine; its docstring is its manual page, `@check` in it registers it."""
