"""Programs with a planted fault that only a second run shows, in three kinds of loop, and `hypocenter twin` on each."""
