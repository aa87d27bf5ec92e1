"""In: digests of what every operator of two runs of one program read and wrote. Out: the first that did not repeat."""
