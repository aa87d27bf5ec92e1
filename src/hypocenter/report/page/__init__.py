"""The offline page: columns of a recording turned into grids, curves and rows that fit one small file."""
