"""What an operator sees of every process: log lines in one form, the request they belong to, traces."""
