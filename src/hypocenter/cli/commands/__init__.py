"""One command per file: `<name>.py` holds `command: click.Command`; its docstring's first line is the one-line help.

Files are found by a folder scan and imported only when their command is used. `import_.py` is the command `import`.
"""
