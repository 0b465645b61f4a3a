"""Load on a server that speaks OpenAI's HTTP, and what came of it; knows HTTP and clocks, no Ray, no model."""
