"""Training of the demo models that ship with the package; not part of the wheel."""
