"""Features: states into feature space and back, one kind a file."""
