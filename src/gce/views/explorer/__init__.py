"""A page on this machine where one picks a system, drags its goal, plans, and watches the simulator follow."""

from gce.views.explorer.server import Explorer, serve

__all__ = ["Explorer", "serve"]
