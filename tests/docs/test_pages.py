"""The pages of the documentation: their code runs, their links are valid, and their lists agree with the code."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fork_server import AT_IMPORT, ForkServer
from launch import run
from pages import DOCS, PAGES, ROOT, Block, anchors, blocks, links

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "page_program.py")
WITH_PYTHON = [page for page in PAGES if any(not block.skipped for block in blocks(page, "python"))]
HOROVOD = importlib.util.find_spec("horovod") is not None
SOURCES = [*(ROOT / "tf_sparse_ps").rglob("*.py"), *(ROOT / "cc").rglob("*.cc"), *(ROOT / "cc").rglob("*.h")]


def id_of(page: Path) -> str:
    return page.stem


def ranks_of(page: Path) -> dict[str, int]:
    """Returns the programs of a page, in order, and the number of ranks of each."""
    programs: dict[str, int] = {}
    for block in blocks(page, "python"):
        if not block.skipped:
            programs[block.program] = max(block.ranks, programs.get(block.program, 1))
    return programs


@pytest.mark.parametrize("page", WITH_PYTHON, ids=id_of)
@pytest.mark.nightly
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """Each program of a page runs in its own process, on as many ranks as the page says."""
    tables = tmp_path / "tables"
    paths = os.pathsep.join([str(ROOT), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": paths, "TFSPS_DIR": str(tables), "TFSPS_TIMEOUT_S": "60"}
    for program, ranks in ranks_of(page).items():
        arguments = [str(page), program, str(tmp_path)]
        if ranks > 1 and HOROVOD:
            run(PROGRAM, *arguments, hosts=f"localhost:{ranks}", ranks=ranks)
            continue
        done = ForkServer.of_this_process().run(Path(PROGRAM), environment | AT_IMPORT, arguments)
        assert done.returncode == 0, f"{page.name}, {program}:\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nassert 1 + 1 == 3\n```\n")
    command = [sys.executable, PROGRAM, str(page), "", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'page.md", line 4' in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_skipped_blocks_have_a_reason(page: Path) -> None:
    assert all(len(block.skipped) > 20 for block in blocks(page, "python") if block.skipped)


# --- shell ---

# Commands that a machine may lack on which tests run.
ELSEWHERE = {"docker", "salloc", "scontrol", "srun", "mpirun", "horovodrun", "pip", "python", "tf-sparse-ps"}
BUILTINS = {".", "cd", "export", "until"}
SHELL_BLOCKS = [(page, block) for page in PAGES for block in blocks(page, "sh")]


@pytest.mark.parametrize(("page", "block"), SHELL_BLOCKS, ids=[f"{p.stem}-{b.line}" for p, b in SHELL_BLOCKS])
def test_shell_blocks_parse_and_name_what_exists(page: Path, block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    titles = {block_of_page.program for block_of_page in blocks(page, "python")} | {"train.py"}
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in block.code.splitlines():
        words = [word for word in shlex.split(re.sub(r"^\w+=\$\(", "", line)) if not re.fullmatch(r"\w+=.*", word)]
        if not words:
            continue
        command = words[0]
        if command == "make":
            assert set(words[1:]) <= targets, line
        elif "/" in command:
            assert os.access(ROOT / command, os.X_OK), line
        else:
            assert command in ELSEWHERE | BUILTINS or shutil.which(command), line
        for program in re.findall(r"\bpython (\S+\.py)", line):
            assert program in titles or (ROOT / program).is_file(), line


# --- links ---


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=id_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def named(navigation: object) -> list[str]:
    """Returns the pages of a navigation, at any depth."""
    if isinstance(navigation, str):
        return [navigation]
    values = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for value in values for page in named(value)]


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(named(navigation)) == sorted(page.name for page in PAGES)


# --- lists ---


def test_the_table_of_environment_variables_is_that_of_the_code() -> None:
    read: set[str] = set()
    for source in SOURCES:
        if "tests" not in source.relative_to(ROOT).parts:
            read |= set(re.findall(r"(?:getenv\(|environ\.get\(|environ\[)\"(TFSPS_\w+)\"", source.read_text()))
    section = (DOCS / "troubleshooting.md").read_text().partition("## Environment variables")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert "TFSPS_DIR" in read
    assert sorted(re.findall(r"TFSPS_\w+", " ".join(cells))) == sorted(read)


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    # Adjacent literals are one text. The arguments of C++'s Error() are joined in the same way.
    code = "\n".join(re.sub(r"\"\s*f?\"", "", source.read_text()) for source in SOURCES)
    messages = re.findall(r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) > 8
    pieces = [piece.strip(" ,") for message in messages for piece in re.split(r"<\w+>", message)]
    assert not [piece for piece in pieces if piece not in code]
