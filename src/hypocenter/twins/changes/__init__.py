"""One file = one change: how it is made, what must stay, what may differ, what a difference means."""
