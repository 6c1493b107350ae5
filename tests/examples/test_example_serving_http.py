"""The HTTP server of the examples: two processes answer, and switch to a newer version without a failed request."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "serving_http"
PATHS = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": PATHS}


def command(program: str, *arguments: object) -> list[str]:
    return [sys.executable, str(PROGRAMS / program), *map(str, arguments)]


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """A folder with the versions 1 and 2."""
    publish = command("publish.py", tmp_path / "published", "--rows", 2000, "--dim", 8, "--every", 0)
    subprocess.run(publish, env=ENVIRONMENT, check=True, timeout=120, capture_output=True)
    return tmp_path / "published"


@pytest.fixture
def server(versions: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a server, whose directory has version 1."""
    (tmp_path / "serve").mkdir()
    (versions / "1").rename(tmp_path / "serve/1")
    process = subprocess.Popen(
        command("server.py", tmp_path / "serve", "--workers", 2, "--port", 0, "--update", 0.1),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watch = threading.Timer(100, os.killpg, [process.pid, signal.SIGKILL])
    watch.start()
    try:
        assert process.stderr is not None
        url, started, lines = "", 0, []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                url = found[1]
            started += "Application startup complete" in line
            if started == 2:
                break
        assert started == 2, "".join(lines)
        yield url
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        watch.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def post(url: str, body: Any) -> tuple[int, str]:
    request = urllib.request.Request(f"{url}/predict", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.nightly
def test_a_server_answers_and_switches_under_load(server: str, versions: Path, tmp_path: Path) -> None:
    for _ in range(4):  # both processes refuse bad requests, and answer good ones after that
        for bad in ({"ids": [[1, 2, 3]]}, {"ids": [[1, 2, 3, 0.5]]}, {"ids": [[1], [2, 3]]}, {"id": 1}, [1], 1):
            status, text = post(server, bad)
            assert (status, text[:10]) == (400, "expected {"), bad
    status, text = post(server, {"ids": [[1, 2, 3, 4], [5, 6, 7, 8]]})
    assert status == 200
    assert len(json.loads(text)["predictions"]) == 2

    load = subprocess.Popen(
        command("load_test.py", "--url", server, "--seconds", 6, "--rows", 2000, "--clients", 4),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with urllib.request.urlopen(f"{server}/version", timeout=30) as response:
        step = json.load(response)["step"]
    (versions / "2").rename(tmp_path / "serve/2")
    printed, _ = load.communicate(timeout=60)
    assert load.returncode == 0, printed
    assert "failures: 0" in printed
    served = dict(re.findall(r"process (\d+) has served steps (.*)", printed))
    assert len(served) == 2, printed
    assert all(int(steps.split(", ")[-1]) > step for steps in served.values()), printed
