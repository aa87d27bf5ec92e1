"""One file = one measure of a run's health with its manual page; see hypocenter.diagnose.health."""
