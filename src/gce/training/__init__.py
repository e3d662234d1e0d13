"""Training: a data set in, a trained model out."""
