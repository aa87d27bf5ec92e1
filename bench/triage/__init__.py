"""Random faults of hardware, kernels and software, and what the triage says of them."""
