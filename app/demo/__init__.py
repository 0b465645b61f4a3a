"""The demo models that ship with the package, and the scripts that trained them."""
