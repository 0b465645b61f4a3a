"""One module a family of tasks; every public function makes one example."""
