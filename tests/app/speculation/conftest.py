from tests.support.spectra_command import own_cache, own_threads

__all__ = ["own_cache", "own_threads"]
