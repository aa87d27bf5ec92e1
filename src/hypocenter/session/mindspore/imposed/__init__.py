"""What a MindSpore run is made to do on an unmodified program, when asked: one file = one such thing. All off."""
