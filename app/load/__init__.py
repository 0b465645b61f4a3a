"""``spectra load``: loads a server that speaks OpenAI's HTTP and reports what its clients see."""
