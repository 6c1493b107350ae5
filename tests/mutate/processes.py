"""The process that works with mutated files, and that they may crash.

python -m tests.mutate.processes [--tiered] SCRATCH SEED NUMBER...

It makes the originals, mutates copies of them, and prints reports as JSON lines: {"begun": number, "mutation": words},
then {"done": number, ...}.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

from tests.mutate import content, mutations, tiered
from tests.mutate.content import Seen

_PARAMETER_FILE = "wide.tfsps"


class Sources:
    """The originals of the mutated files, each of which is made when it is first needed.

    A group is made in the folder in which copies of it are opened, and then put aside, because a group with rows on
    disk records their folder.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._aside = scratch, scratch / "sources"
        self._aside.mkdir()

    def copy(self, state: str) -> Path:
        """Puts a group in this state, or a parameter file, in place of the last copy; returns its path."""
        name = _PARAMETER_FILE if state == mutations.FILE else state
        source, target = self._aside / name, self._scratch / name
        if not source.exists():
            self._make(target, state)
            target.rename(source)
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        return target

    def _make(self, path: Path, state: str) -> None:
        if state == mutations.FILE:
            content.make_file(path)
        elif state in tiered.STATES:
            tiered.make_group(path, state)
        else:
            content.make_group(path, state)


def phases(path: Path, state: str) -> list[Seen]:
    """Does all work on the files: a reader's, then the next writer's; or loads a parameter file."""
    if state == mutations.FILE:
        return [content.load(path)]
    group = tiered if state in tiered.STATES else content
    return [group.read(path), group.write(path)]


def verdict(seen: Seen, expected: Seen) -> str:
    """Returns "refused", "found", "harmless" or "wrong"."""
    if seen.error:
        return "refused"
    if seen.problems:
        return "found"
    return "harmless" if seen.same_content(expected) else "wrong"


def work(scratch: Path, seed: int, numbers: list[int], only_tiered: bool) -> None:
    sources = Sources(scratch)
    expected: dict[str, list[Seen]] = {}
    for number in numbers:
        state = mutations.state_of(seed, number, only_tiered)
        if state not in expected:
            expected[state] = phases(sources.copy(state), state)
            assert not any(seen.error or seen.problems for seen in expected[state]), expected[state]
        path = sources.copy(state)
        mutation = mutations.mutate(path, seed, number, state)
        print(json.dumps({"begun": number, **dataclasses.asdict(mutation)}), flush=True)
        try:
            results = phases(path, state)
        except Exception as error:  # any exception that is not the store's is as bad as a crash
            print(json.dumps({"done": number, "verdicts": ["unclean"], "words": [repr(error)]}), flush=True)
            continue
        verdicts = [verdict(*pair) for pair in zip(results, expected[state], strict=True)]
        words = [seen.error or "; ".join(seen.problems) for seen in results]
        print(json.dumps({"done": number, "verdicts": verdicts, "words": words}), flush=True)


if __name__ == "__main__":
    only_tiered = sys.argv[1] == "--tiered"
    folder, *rest = sys.argv[1 + only_tiered :]
    work(Path(folder), int(rest[0]), [int(number) for number in rest[1:]], only_tiered)
