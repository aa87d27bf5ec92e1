"""What the real batches of a run say: one file = one check of one side; `rows` puts both sides beside each other."""
