"""What each sink costs a step beside `sentinel` alone, in milliseconds of CPU time of the training process."""
