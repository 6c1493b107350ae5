"""Checks that a release is complete before it is published.

python tools/release.py v1.2.3              the tag, the version and CHANGELOG.md belong together
python tools/release.py v1.2.3 FOLDER       the folder has the sdist and a wheel for each Python, and nothing else
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from wheels import PLATFORM, VERSIONS

ROOT = Path(__file__).resolve().parent.parent


def version_of_package() -> str:
    """Returns the version in tf_sparse_ps/_version.py, without importing the package."""
    match = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "tf_sparse_ps/_version.py").read_text(), re.MULTILINE)
    assert match is not None, "tf_sparse_ps/_version.py has no line __version__ = ..."
    return match[1]


def objections_to_tag(tag: str, version: str, changelog: str) -> list[str]:
    """Returns what a tag has against a version and the text of a changelog."""
    objections = []
    if tag != f"v{version}":
        objections.append(f"the tag is {tag}, but the package has version {version}. Tag the commit as v{version}")
    section = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if section is None:
        objections.append(f'CHANGELOG.md has no heading "## [{version}] - YYYY-MM-DD". Give Unreleased this heading')
    elif not section[1].strip():
        objections.append(f"the section of {version} in CHANGELOG.md is empty. Describe what has changed")
    return objections


def expected_packages(version: str) -> set[str]:
    """Returns the names of the files of a release."""
    tags = [f"cp{python.replace('.', '')}" for python in VERSIONS]
    wheels = {f"tf_sparse_ps-{version}-{tag}-{tag}-{PLATFORM}.whl" for tag in tags}
    return wheels | {f"tf_sparse_ps-{version}.tar.gz"}


def objections_to_packages(names: set[str], version: str) -> list[str]:
    """Returns what is missing among the files of a release, and what does not belong there."""
    expected = expected_packages(version)
    objections = [f"{name} is missing" for name in sorted(expected - names)]
    return objections + [f"{name} does not belong to release {version}" for name in sorted(names - expected)]


def main() -> int:
    """Prints the objections. Returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args()
    version = version_of_package()
    objections = objections_to_tag(options.tag, version, (ROOT / "CHANGELOG.md").read_text())
    if options.folder is not None:
        objections += objections_to_packages({path.name for path in options.folder.iterdir()}, version)
    for objection in objections:
        print(f"release: {objection}", file=sys.stderr)
    return 1 if objections else 0


if __name__ == "__main__":
    sys.exit(main())
