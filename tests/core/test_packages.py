"""The packages of cc/core, and those of the library, import each other in the one direction of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "cc" / "core"
LIBRARY = ROOT / "tf_sparse_ps"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]*) ?\|$")
CORE_LINES, LIBRARY_LINES = 400, 500


def packages(of: str = "core") -> dict[str, set[str]]:
    """Returns, for each package of a table in the document, the packages that it may use."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split(f"## Packages of the {of}", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in map(ROW.match, section.splitlines()) if row]
    return {row[1]: set(row[2].replace(",", " ").split()) for row in rows}


def test_every_folder_is_in_the_table() -> None:
    assert sorted(packages()) == sorted(folder.name for folder in CORE.iterdir())
    assert not [path.name for path in CORE.iterdir() if path.is_file()]


@pytest.mark.parametrize("of", ["core", "library"])
def test_the_table_has_no_circle(of: str) -> None:
    below = packages(of)
    while below:
        lowest = [name for name, includes in below.items() if not includes & set(below)]
        assert lowest, f"a circle in {sorted(below)}"
        below = {name: includes for name, includes in below.items() if name not in lowest}


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_includes_only_what_the_table_says(package: str) -> None:
    allowed = packages()[package] | {package}
    for source in sorted((CORE / package).iterdir()):
        for included in re.findall(r'#include "(.*?)"', source.read_text()):
            homes = {f"core/{home}" for home in allowed}
            assert included.rpartition("/")[0] in homes, f"{source.relative_to(ROOT)} includes {included}"


def test_no_file_is_longer_than_a_reader_likes() -> None:
    limits = dict.fromkeys(CORE.rglob("*.*"), CORE_LINES) | dict.fromkeys(LIBRARY.rglob("*.py"), LIBRARY_LINES)
    lines = {file: len(file.read_text().splitlines()) for file in limits}
    assert {str(file.relative_to(ROOT)): lines[file] for file in limits if lines[file] > limits[file]} == {}


def imports(file: Path) -> Iterator[tuple[str, int, bool]]:
    """Yields the imports of a module: the package, the line, and whether a function contains it."""
    tree = ast.parse(file.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tf_sparse_ps":
            yield from ((alias.name, node.lineno, id(node) in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tf_sparse_ps."):
            yield str(node.module).split(".")[1], node.lineno, id(node) in inside
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield "", node.lineno, id(node) in inside


def home(file: Path) -> str:
    """Returns the package of a module."""
    return file.relative_to(LIBRARY).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(module for module in LIBRARY.rglob("*.py") if module != LIBRARY / "__init__.py")


def test_every_module_of_the_library_is_in_a_package_of_the_table() -> None:
    assert {home(module) for module in modules()} | {"_table"} == set(packages("library"))


def test_packages_of_the_library_import_what_the_table_says_and_nothing_else() -> None:
    imported: dict[str, set[str]] = {name: set() for name in packages("library")}
    for module in modules():
        imported[home(module)] |= {package for package, _, _ in imports(module)} - {home(module), ""}
    assert imported == packages("library")


def test_functions_import_only_where_a_comment_says_why() -> None:
    for module in modules():
        lines = module.read_text().splitlines()
        for _, line, in_function in imports(module):
            assert not in_function or "  # " in lines[line - 1], f"{module.relative_to(ROOT)}:{line} has no comment"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def module_imports(file: Path, names: set[str]) -> set[str]:
    """Returns the modules of the library that a module imports, also for types and in functions."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tf_sparse_ps"):
            for alias in node.names:
                # `_table` is the extension, not a Python module.
                inner = f"{node.module}.{alias.name}"
                imported.add(inner if inner in names or alias.name == "_table" else str(node.module))
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return (imported & names) - {module_name(file)}


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {module_name(file): file for file in LIBRARY.rglob("*.py")}
    remaining = {name: module_imports(file, set(files)) for name, file in files.items()}
    assert len(remaining) > 100
    # Removes modules that import none of the others, and then those that nobody imports. Circles remain.
    while lowest := {name for name, imported in remaining.items() if not imported & set(remaining)}:
        remaining = {name: imported for name, imported in remaining.items() if name not in lowest}
    while remaining and (unused := set(remaining) - set().union(*remaining.values())):
        remaining = {name: imported for name, imported in remaining.items() if name not in unused}
    assert not remaining, f"modules that import each other in a circle: {sorted(remaining)}"
