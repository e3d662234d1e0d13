"""A model adapted to one system: evidence of episodes, predictions, how far they are off, files."""
