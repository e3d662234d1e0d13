"""Other libraries' data, one file a partner; each is imported only when it is used."""

from gce.names import lazy

__getattr__, __dir__ = lazy(__name__, {})
