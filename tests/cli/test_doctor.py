"""`doctor` finds what makes jobs fail, and names the remedy."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Run

from tf_sparse_ps.cli import disk_check, machine_checks, software_checks
from tf_sparse_ps.cli.checks import NOTE, OK, PROBLEM, Check
from tf_sparse_ps.folders import Folder

GIB = 1 << 30


def test_this_machine_is_checked(run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFSPS_DIR", str(shm))
    done = run("doctor", "--json", "--tiers", shm)
    checks = {check["name"]: check for check in done.facts["checks"]}
    assert {"python", "tensorflow", "keras", "op library", "memory", "ports", "tiers"} <= set(checks)
    assert checks["op library"]["status"] == checks["python"]["status"] == OK
    assert done.status == (0 if done.facts["ok"] else 1)
    assert all(check["remedy"] for check in checks.values() if check["status"] != OK)
    assert not [check for check in checks.values() if check["status"] == OK and check["remedy"]]
    assert run("doctor").out.startswith("CHECK ")


def test_a_problem_is_the_status_and_its_remedy_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFSPS_DIR", str(tmp_path / "file" / "tables"))
    (tmp_path / "file").touch()
    done = run("doctor")
    assert done.status == 1
    assert "folder of tables: Set TFSPS_DIR to a folder" in done.out


def versions(**installed: str) -> Callable[[str], str | None]:
    return lambda name: installed.get(name.replace("-", "_"))


@pytest.mark.parametrize(
    ("installed", "statuses", "remedy"),
    [
        (
            {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.2.6"},
            {"tensorflow": OK, "keras": OK, "numpy": OK},
            "",
        ),
        ({"tensorflow_cpu": "2.15.1", "keras": "2.15.0", "numpy": "1.26.4"}, {"tensorflow": OK, "keras": OK}, ""),
        ({"tensorflow": "2.15.1", "keras": "3.0.5", "numpy": "1.26.4"}, {"keras": PROBLEM}, "keras>=2,<3"),
        ({"tensorflow": "2.16.2", "keras": "2.15.0", "numpy": "1.26.4"}, {"keras": PROBLEM}, "keras>=3,<4"),
        ({"tensorflow": "2.16.2", "numpy": "1.26.4"}, {"keras": PROBLEM}, "pip install keras"),
        ({"tensorflow": "2.15.1", "keras": "2.15.0", "numpy": "2.2.6"}, {"numpy": PROBLEM}, "numpy<2"),
        ({"tensorflow": "2.14.0", "keras": "2.14.0", "numpy": "1.26.4"}, {"tensorflow": PROBLEM}, "2.15 to 2.21"),
        ({"tf_nightly": "2.22.0.dev1", "keras": "3.15.1", "numpy": "2.2.6"}, {"tensorflow": PROBLEM}, "2.15 to 2.21"),
        ({}, {"tensorflow": NOTE}, "do not need it"),
    ],
)
def test_versions_that_do_not_fit(
    installed: dict[str, str], statuses: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    checks = {check.name: check for check in software_checks.all_of(versions(**installed))}
    assert {name: checks[name].status for name in statuses} == statuses
    assert not remedy or any(remedy in checks[name].remedy for name in statuses)


def test_legacy_keras_is_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with_keras_3 = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.2.6"}
    found = {check.name: check for check in software_checks.all_of(versions(**with_keras_3))}
    assert (found["keras"].status, "tf-keras" in found["keras"].remedy) == (PROBLEM, True)
    found = {check.name: check for check in software_checks.all_of(versions(**with_keras_3, tf_keras="2.19.0"))}
    assert found["keras"].status == OK


def test_python_and_the_op_library(tmp_path: Path) -> None:
    assert software_checks.python((3, 9)).status == software_checks.python((3, 14)).status == PROBLEM
    missing = software_checks.op_library(tmp_path / "lib.so", "2.21.0")
    assert (missing.status, "make build" in missing.remedy) == (PROBLEM, True)
    assert software_checks.op_library(tmp_path / "lib.so", None).status == NOTE


class Statvfs:
    """What `os.statvfs` returns of a file system of some size."""

    f_frsize = 1

    def __init__(self, total: int, free: int) -> None:
        self.f_blocks, self.f_bavail = total, free


@pytest.mark.parametrize(
    ("total", "free", "kind", "status", "remedy"),
    [
        (64 << 20, 64 << 20, "tmpfs", PROBLEM, "--shm-size"),
        (64 * GIB, GIB // 2, "tmpfs", NOTE, "tf-sparse-ps clean"),
        (64 * GIB, 64 * GIB, "ext4", NOTE, "tmpfs"),
        (64 * GIB, 64 * GIB, "tmpfs", OK, ""),
    ],
)
def test_room_for_tables(
    total: int, free: int, kind: str, status: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks.os, "statvfs", lambda _: Statvfs(total, free))
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / xfs rw 0 0\nshm {tmp_path} {kind} rw 0 0\nother {tmp_path}/other ext3 rw 0 0\n")
    check = machine_checks.room(str(tmp_path / "none" / "tables"), mounts)
    assert (check.status, check.facts["file_system"]) == (status, kind)
    assert remedy in check.remedy


def cgroup(folder: Path, own: str, **files: str) -> Path:
    """Makes cgroups in a folder, whose file `proc/self/cgroup` has the text `own`."""
    (folder / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "self" / "cgroup").write_text(own)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n")
    for name, text in files.items():
        path = folder / "cgroups" / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "files", "headroom"),
    [
        ("0::/a/b\n", {"a__memoryDOTmax": str(3 * GIB), "a__memoryDOTcurrent": str(GIB)}, 2 * GIB),
        (
            "0::/a/b\n",
            {
                "a__memoryDOTmax": str(3 * GIB),
                "a__memoryDOTcurrent": str(GIB),
                "a__b__memoryDOTmax": str(GIB),
                "a__b__memoryDOTcurrent": str(GIB - 5),
            },
            5,
        ),
        ("0::/a\n", {"a__memoryDOTmax": "max", "a__memoryDOTcurrent": "7"}, None),
        (
            "4:memory:/x\n1:cpu:/x\n",
            {"memory__x__memoryDOTlimit_in_bytes": "100", "memory__x__memoryDOTusage_in_bytes": "160"},
            0,
        ),
        (
            "4:memory:/x\n",
            {"memory__x__memoryDOTlimit_in_bytes": str(2**63 - 4096), "memory__x__memoryDOTusage_in_bytes": "1"},
            None,
        ),
    ],
)
def test_memory_of_cgroups_and_their_parents(
    own: str, files: dict[str, str], headroom: int | None, tmp_path: Path
) -> None:
    folder = cgroup(tmp_path, own, **files)
    check = machine_checks.memory(folder / "proc", folder / "cgroups")
    assert check.facts == {"bytes": 64 * GIB, "available": 32 * GIB, "cgroup_headroom": headroom}
    assert check.status == (PROBLEM if headroom is not None and headroom < GIB // 4 else OK)


def test_limits_and_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFSPS_HUGE_PAGES", raising=False)
    setting = tmp_path / "shmem_enabled"
    setting.write_text("always within_size [advise] never deny force\n")
    assert machine_checks.huge_pages("6.1.0-x", setting).status == OK
    assert machine_checks.huge_pages("5.15.0", setting).status == NOTE
    setting.write_text("always within_size advise never [deny] force\n")
    assert machine_checks.huge_pages("6.12.0", setting).status == NOTE
    monkeypatch.setenv("TFSPS_HUGE_PAGES", "0")
    assert machine_checks.huge_pages("5.15.0", setting).status == OK
    assert [machine_checks.open_files(n).status for n in (100, 1024, 4096, -1)] == [PROBLEM, NOTE, OK, OK]
    assert machine_checks.locked_memory(-1).facts == {"limit": None}


@pytest.mark.parametrize(
    ("addresses", "status"), [(["10.0.0.7"], OK), (["127.0.1.1"], NOTE), (["10.0.0.7", "127.0.1.1"], OK), ([], PROBLEM)]
)
def test_the_name_of_the_machine(addresses: list[str], status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(machine_checks.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(machine_checks.socket, "gethostname", lambda: "otherbox")
    check = machine_checks.host_name()
    assert (check.status, check.facts["addresses"]) == (status, sorted(addresses))
    assert "/etc/hosts" in check.remedy or status == OK


def test_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "range"
    setting.write_text("60000\t60100\n")
    check = machine_checks.ports(setting)
    assert (check.status, check.facts) == (NOTE, {"lowest": 60000, "highest": 60100})

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(machine_checks.socket, "create_connection", refuse)
    assert machine_checks.ports(setting).status == PROBLEM


# --- disk ---


def test_the_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    check = disk_check.tiers(str(tmp_path))
    assert check.facts["write_bytes_per_s"] > 0
    assert check.facts["reads_per_s"] > 0
    assert list(tmp_path.iterdir()) == []
    missing = disk_check.tiers(str(tmp_path / "none"))
    assert (missing.status, "mkdir -p" in missing.remedy) == (PROBLEM, True)
    tmp_path.chmod(0o777)
    assert disk_check.tiers(str(tmp_path)).status == PROBLEM


def test_a_file_system_that_refuses_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    real = Folder.open_file

    def refuse(self: Folder, name: str, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            os.close(real(self, name, flags & ~os.O_DIRECT, *rest, **options))  # it has made the file
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(self, name, flags, *rest, **options)

    monkeypatch.setattr(Folder, "open_file", refuse)
    check = disk_check.tiers(str(tmp_path))
    assert isinstance(check, Check)
    assert (check.facts["direct"], list(tmp_path.iterdir())) == (False, [])
    assert check.status != OK
