"""Who sends a request and what it may ask for: keys, quotas, the caller that every other room sees."""
