"""An adapted system as a planner sees it: flat, normalised, with derivatives."""
