"""Other libraries' data, one file a partner; each is imported only when it is used."""
