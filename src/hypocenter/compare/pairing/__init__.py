"""What matchers share: their chain, how ports of two modules pair, and how one tensor may lie against another."""
