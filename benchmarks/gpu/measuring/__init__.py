"""Measures attention, products and steps, makes random models, and scores texts, for the commands."""
