"""A release has one version, a section of the changelog, and packages for every Python; the workflow builds these."""

from __future__ import annotations

import re
from pathlib import Path

import cxx
import pytest
import yaml

import release
import wheels
from tf_sparse_ps._version import PYTHON_RANGE, TENSORFLOW_RANGE, __version__

ROOT = Path(__file__).resolve().parents[2]
PUBLISH = ROOT / ".github/workflows/publish.yml"
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n- A change.\n\n## [1.2.2] - 2026-01-01\n"


def test_a_complete_release_has_no_objections() -> None:
    assert release.objections_to_tag("v1.2.3", "1.2.3", CHANGES) == []
    assert release.objections_to_packages(release.expected_packages("1.2.3"), "1.2.3") == []


@pytest.mark.parametrize(
    ("tag", "version", "objection"),
    [
        ("v1.2.4", "1.2.3", "the tag is v1.2.4, but the package has version 1.2.3"),
        ("1.2.3", "1.2.3", "Tag the commit as v1.2.3"),
        ("v1.3.0", "1.3.0", r"no heading \"## \[1.3.0\] - YYYY-MM-DD\""),
        ("v1.2.2", "1.2.2", "the section of 1.2.2 in CHANGELOG.md is empty"),
    ],
)
def test_a_tag_without_its_version_or_changes_is_refused(tag: str, version: str, objection: str) -> None:
    (only,) = release.objections_to_tag(tag, version, CHANGES)
    assert re.search(objection, only), only


def test_missing_and_foreign_packages_are_named() -> None:
    names = release.expected_packages("1.2.3")
    missing = next(name for name in names if "cp312" in name)
    foreign = missing.replace("manylinux_2_28", "linux")
    assert release.objections_to_packages(names - {missing} | {foreign}, "1.2.3") == [
        f"{missing} is missing",
        f"{foreign} does not belong to release 1.2.3",
    ]


def test_the_version_is_read_without_importing_the_package() -> None:
    assert release.version_of_package() == __version__


def test_the_pythons_of_wheels_are_those_of_the_package() -> None:
    low, high = PYTHON_RANGE
    assert tuple(f"3.{minor}" for minor in range(low[1], high[1] + 1)) == wheels.VERSIONS
    tested = {tuple(map(int, version.split(".")[:2])) for version in wheels.TENSORFLOWS.values()}
    assert set(TENSORFLOW_RANGE) <= tested, "the oldest and the newest TensorFlow must be tried"
    text = (ROOT / "pyproject.toml").read_text()
    assert tuple(re.findall(r"Python :: (3\.\d+)\"", text)) == wheels.VERSIONS
    assert f'requires-python = ">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"' in text


def test_the_workflow_builds_and_tries_every_python_on_the_oldest_glibc() -> None:
    jobs = yaml.safe_load(PUBLISH.read_text())["jobs"]
    (setup,) = [step["with"] for step in jobs["build"]["steps"] if "setup-python" in step.get("uses", "")]
    assert sorted(setup["python-version"].split()) == list(wheels.VERSIONS)
    tags = [f"cp{version.replace('.', '')}" for version in wheels.VERSIONS]
    assert jobs["test"]["strategy"]["matrix"]["python"] == tags
    assert jobs["test"]["container"].endswith(f"/{wheels.PLATFORM}")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [jobs[name].get("needs") for name in ("build", "test", "publish")] == [None, "build", "test"]


def test_the_installation_page_states_the_oldest_glibc() -> None:
    page = (ROOT / "docs/install.md").read_text()
    assert re.search(rf"glibc\s+{cxx.GLIBC[0]}\.{cxx.GLIBC[1]}\b", page)


def test_steps_of_the_workflow_name_existing_programs_and_targets() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [
        step["run"]
        for job in yaml.safe_load(PUBLISH.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert len(steps) == 6
    for step in steps:
        for command in re.findall(r"\bmake ([a-z -]+)", step):
            assert set(command.split()) <= targets, command
        for program in re.findall(r"\b(tools/\S+)", step):
            assert (ROOT / program).is_file(), program
