"""``spectra bench``: methods side by side on a model, or replayed on recorded answers; records, figures, report."""
