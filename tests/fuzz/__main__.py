"""`python -m fuzz --trials 20000 --seed 0` in tests/: a table of what went wrong, and status 1 where anything did.

A run that was stopped goes on with --begin and the number of trials it told last.
"""

import argparse
import json
import sys
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

from fuzz.harness import CORPUS, Harness


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--trials", type=int, default=1000)
    asked.add_argument("--begin", type=int, default=0, help="leave out so many of them")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--family", help="one, or several with commas between")
    asked.add_argument("--only", type=int, help="the number of one trial, shown in full")
    asked.add_argument("--corpus", action="store_true", help="run what ever failed as well")
    asked.add_argument("--keep", action="store_true", help="add failures to the corpus")
    asked = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder))
        if asked.only is not None:
            for _, outcome in harness.run([(asked.family, asked.only)]):
                print(outcome.said, outcome, sep="\n")
            return
        failures, done = [], asked.begin
        known = json.loads(CORPUS.read_text()) if asked.corpus else []
        drawn = islice(harness.draw(asked.trials, asked.seed, asked.family), asked.begin, None)
        with suppress(KeyboardInterrupt):  # what was done until then is told
            for trial, outcome in harness.run([*known, *drawn]):
                done += 1
                if outcome.wrong:
                    failures.append(list(trial))
                    print(*trial, outcome.wrong, flush=True)
                if done % 1000 == 0:
                    print(f"{done} trials", flush=True)
        print(f"{done - asked.begin} trials from seed {asked.seed}")
        print(harness.table())
    if asked.keep:
        known = json.loads(CORPUS.read_text())
        CORPUS.write_text(json.dumps(known + [one for one in failures if one not in known], indent=0) + "\n")
    sys.exit(bool(failures))


main()
