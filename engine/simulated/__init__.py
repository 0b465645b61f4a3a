"""A target without a model: stages sleep for the time of a real model, and write recorded answers."""
