"""The notebooks run; any cell runs again, and `fit` runs again after it was interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
WAIT_S = 120


class Kernel:
    """A running notebook."""

    def __init__(self, name: str, tables: Path) -> None:
        self.notebook = nbformat.read(FOLDER / name, as_version=4)
        self._client = nbclient.NotebookClient(self.notebook, timeout=WAIT_S, allow_errors=False)
        self._tables = tables
        self._within: Any = None

    def __enter__(self) -> Kernel:
        environment = {**os.environ, "TFSPS_DIR": str(self._tables), "PYTHONPATH": str(ROOT)}
        self._within = self._client.setup_kernel(env=environment)
        self._within.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._within.__exit__(*error)

    def run(self, part: str) -> str:
        """Runs the cell that contains a text. Returns what it printed and its value."""
        (index,) = (i for i, cell in enumerate(self.notebook.cells) if cell.cell_type == "code" and part in cell.source)
        cell = self._client.execute_cell(self.notebook.cells[index], index)
        return "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
        )

    def run_all(self) -> list[str]:
        """Runs all cells. Returns their outputs."""
        return [self.run(cell.source) for cell in self.notebook.cells if cell.cell_type == "code"]

    def interrupt(self) -> None:
        """Does what the stop button does."""
        os.kill(self._client.km.provisioner.pid, signal.SIGINT)


def test_notebooks_are_without_outputs() -> None:
    for path in FOLDER.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), path


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_notebooks_run_twice(name: str, tmp_path: Path) -> None:
    with Kernel(name, tmp_path / "tables") as kernel:
        first = kernel.run_all()
        again = kernel.run_all()
    if name == "first_model.ipynb":
        for outputs in (first, again):
            assert any(output.endswith("True") for output in outputs), outputs
    else:
        assert first[-1] == again[-1] == "()\n"


@pytest.mark.nightly
def test_cells_run_again_in_any_order_and_after_an_interrupt(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    with Kernel("first_model.ipynb", tables) as kernel:
        kernel.run("import keras")
        kernel.run("optimizer = tsps")
        kernel.run("model.fit")
        kernel.run("optimizer = tsps")  # another model, with another table
        kernel.run("model.fit")
        kernel.notebook.cells.append(
            nbformat.v4.new_code_cell("model.fit(ids, clicked, batch_size=8, epochs=1000, verbose=0)")
        )
        interrupted = threading.Timer(4.0, kernel.interrupt)
        interrupted.start()
        began = time.monotonic()
        with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
            kernel.run("epochs=1000")
        assert time.monotonic() - began < WAIT_S / 2
        kernel.run("model.fit(ids, clicked, batch_size=256")
        assert "999999" not in kernel.run("table.lookup")
        groups = [entry for entry in tables.iterdir() if not entry.name.startswith(".")]
        assert len(groups) == 1
        folders = [entry for entry in groups[0].iterdir() if entry.is_dir() and entry.name.startswith("t0")]
        assert len(folders) <= 2, "tables of layers that are gone stay"
