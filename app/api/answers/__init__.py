"""What is written back to clients: bodies, events, and what they are made of."""
