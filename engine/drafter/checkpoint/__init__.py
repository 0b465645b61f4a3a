"""Reads and writes checkpoints of trained drafters in all public layouts.

``read.read_drafter`` and ``write.write_drafter`` convert between files and a ``tensors.DrafterCheckpoint``. Two tables
describe the layouts: ``layouts.LAYOUTS`` (how each is recognised and read) and ``tensors.TABLE`` (names and shapes).

ParallelSpec's authors have published no checkpoint, so its layout is our own: ``model.safetensors`` with our names, and
a ``config.json`` whose object ``spectra_drafter`` has the fields of ``DrafterSpec``. Fields that have a default are
optional.
"""
