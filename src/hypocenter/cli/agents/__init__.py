"""In: what an agent asks. Out: the JSON answers of the commands, a page at a time, of recordings that it may read."""
