"""From prompts to batches: answers of the target, held-out ones apart, with the states that it computed on them."""
