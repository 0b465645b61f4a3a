"""How many pipelines a router wants, and how they come and go while it serves."""
