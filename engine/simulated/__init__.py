"""A target without a model: stages that sleep as long as a model's would compute, and write recorded answers."""
