"""A running program in, tensors with their sites out: hooks on modules, ops, gradients, optimizers and scalers."""
