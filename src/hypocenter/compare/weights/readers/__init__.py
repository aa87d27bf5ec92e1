"""One file = one kind of checkpoint; tensors are not read before somebody asks for a part of them."""
