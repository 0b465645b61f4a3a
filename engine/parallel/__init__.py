"""A stage of several tensor-parallel ranks: the leader drives the others, and all exchange sums."""
