"""Planning: problems, solvers and filters on arrays. Nothing here knows an environment or a neural network."""
