"""What optimizers do at an update, one file = one rule: a weight, its gradient and a state in, the next ones out."""
