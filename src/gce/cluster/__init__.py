"""Work beside this process, on engines of others: independent pieces on Dask (`crew`)."""
