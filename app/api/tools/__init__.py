"""Calls of tools in a model's text: a parser per family of models, and what a grammar of a call is made of."""
