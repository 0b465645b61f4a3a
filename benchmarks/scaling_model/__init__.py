"""How throughput and latency follow from stages, batch, tree width and links: the model of docs/scaling.md, checked."""
