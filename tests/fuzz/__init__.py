"""Files and numbers that are wrong on purpose, and what the program makes of them.

`make fuzz` (TRIALS, SEED) runs trials of all families; `corpus.json` has those that ever failed, which the tests run
again. A trial is decided by its family and its number. It must end with status 0 or 2, in 10 seconds and 1 GB, without
a traceback; and where only bytes of a file with digests were changed, an answer must be that of the unchanged file.
"""
