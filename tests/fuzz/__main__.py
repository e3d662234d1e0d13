"""`python -m fuzz --trials 20000 --seed 0` in tests/: a table of what went wrong, and status 1 where anything did."""

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fuzz.harness import CORPUS, Harness


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--trials", type=int, default=1000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--family")
    asked.add_argument("--only", type=int, help="the number of one trial, shown in full")
    asked.add_argument("--corpus", action="store_true", help="run what ever failed as well")
    asked.add_argument("--keep", action="store_true", help="add failures to the corpus")
    asked = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder))
        if asked.only is not None:
            print(harness.run(asked.family, asked.only, show=True))
            return
        began, failures = time.monotonic(), []
        known = json.loads(CORPUS.read_text()) if asked.corpus else []
        with suppress(KeyboardInterrupt):  # what was done until then is told
            for name, number in [*known, *harness.draw(asked.trials, asked.seed, asked.family)]:
                outcome = harness.run(name, number)
                if outcome.wrong:
                    failures.append([name, number])
                    print(f"{name} {number}: {outcome.wrong}", flush=True)
        print(f"trials from seed {asked.seed} in {time.monotonic() - began:.0f} s")
        print(harness.table())
    if asked.keep:
        known = json.loads(CORPUS.read_text())
        CORPUS.write_text(json.dumps(known + [one for one in failures if one not in known], indent=0) + "\n")
    sys.exit(bool(failures))


main()
