"""Training: batches, losses, memories, random numbers, and the loop."""
