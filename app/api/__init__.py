"""The edge: OpenAI's HTTP API in front of anything that yields step events."""
