"""What several benchmarks share: prompts, servers, clocks, tables."""
