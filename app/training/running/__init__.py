"""The command: from flags to a trained drafter, its figures and its card."""
