"""What the keys of a framework say only together: bf16 and fp16 are one format, samples and a batch are steps."""
