"""``spectra corpus``: builds snapshots of the texts that a target finds likely, reports on them and publishes them."""
