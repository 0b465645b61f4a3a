"""Training of drafters: texts, loss, loop and held-out acceptance."""
