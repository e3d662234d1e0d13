"""One table or figure a module."""
