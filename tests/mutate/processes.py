"""The process that works with mutated files, and may end by it.

python -m tests.mutate.processes make FOLDER
python -m tests.mutate.processes work FOLDER SCRATCH SEED NUMBER...

`make` leaves in FOLDER what is mutated. `work` takes copies of it, mutates them and says as JSON lines what came of it:
{"begun": number, "mutation": words}, then {"done": number, ...}.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

from tests.mutate import content, mutations
from tests.mutate.content import Seen

_PARAMETER_FILE = "wide.tfsps"


def make(folder: Path) -> None:
    for state in content.STATES:
        content.make_group(folder / state, state)
    content.make_file(folder / _PARAMETER_FILE)


def source_of(folder: Path, state: str) -> Path:
    """What is mutated, of this state."""
    return folder / (_PARAMETER_FILE if state == mutations.FILE else state)


def copy(source: Path, scratch: Path) -> Path:
    """A copy of a group or a file, in place of the last one."""
    target = scratch / source.name
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    return target


def phases(path: Path, state: str) -> list[Seen]:
    """All that is done with the files: by a reader, then by the next writer; or by whoever loads the file."""
    return [content.load(path)] if state == mutations.FILE else [content.read(path), content.write(path)]


def verdict(seen: Seen, expected: Seen) -> str:
    """refused | found | harmless | wrong"""
    if seen.error:
        return "refused"
    if seen.problems:
        return "found"
    return "harmless" if seen.same_content(expected) else "wrong"


def work(folder: Path, scratch: Path, seed: int, numbers: list[int]) -> None:
    expected: dict[str, list[Seen]] = {}
    for number in numbers:
        state = mutations.state_of(seed, number)
        if state not in expected:
            expected[state] = phases(copy(source_of(folder, state), scratch), state)
            assert not any(seen.error or seen.problems for seen in expected[state]), expected[state]
        path = copy(source_of(folder, state), scratch)
        mutation = mutations.mutate(path, seed, number, state)
        print(json.dumps({"begun": number, **dataclasses.asdict(mutation)}), flush=True)
        try:
            found = phases(path, state)
        except Exception as error:  # anything but the store's exceptions is as bad as a crash
            print(json.dumps({"done": number, "verdicts": ["unclean"], "words": [repr(error)]}), flush=True)
            continue
        verdicts = [verdict(*pair) for pair in zip(found, expected[state], strict=True)]
        words = [seen.error or "; ".join(seen.problems) for seen in found]
        print(json.dumps({"done": number, "verdicts": verdicts, "words": words}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        work(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), [int(number) for number in sys.argv[5:]])
