"""Graphs: nodes, typed edges, random topologies; the same as tensors, with sums over neighbourhoods."""
