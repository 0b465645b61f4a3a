"""Training of drafters: what they are asked to minimise, how it is measured on held-out texts, and the loop."""
