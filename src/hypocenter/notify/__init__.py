"""In: an alert, and where it is to go. Out: a command, a request or a mail, in a thread that nobody waits for."""
