"""Work beside this process, on engines of others: pieces on Dask (`crew`), training under torchrun (`ranks`)."""

import os


def follower() -> str | None:
    """The rank of a process under torchrun that leaves writing and telling to rank 0."""
    rank = os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else "0"
    return None if rank == "0" else rank
