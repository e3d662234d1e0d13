"""Work beside this process, on engines of others: pieces on Dask (`crew`), training under torchrun (`ranks`)."""
