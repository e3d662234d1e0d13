"""The model: an embedding, operators fitted in it, and steps under them."""
