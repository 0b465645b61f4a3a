"""The demo models that ship with the package."""
