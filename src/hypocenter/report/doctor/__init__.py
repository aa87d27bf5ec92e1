"""What `hypocenter doctor` says on a screen."""
