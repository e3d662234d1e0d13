"""Planning: where a world, an adapted system and a controller meet."""
