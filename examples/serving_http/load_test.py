"""Sends requests to server.py for a time, and prints rates, latencies, failures and the memory of the tables.

    python examples/serving_http/load_test.py --seconds 20

The program runs on the machine of the server. Publish versions meanwhile to see that a switch fails no request.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import aiohttp
import numpy as np
import psutil

_LOOK_S = 0.2  # between requests for /version
_TIMEOUT_S = 30.0


class Load:
    """The requests of a load test.

    Attributes:
        latencies: The seconds of each request that was answered with predictions.
        failures: The reason of each request that was not.
        steps: The steps that each server process has served, by its id.
    """

    def __init__(self, url: str, batch: int, fields: int, rows: int) -> None:
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self.steps: dict[int, list[int]] = {}
        self._url, self._shape, self._rows = url, (batch, fields), rows

    async def run(self, clients: int, seconds: float, requests: int) -> float:
        """Sends requests until the time has passed or enough were sent. Returns the seconds that it took."""
        began = time.perf_counter()
        self._until, self._left = began + seconds, requests
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(self._url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session,
            # A new connection for each request reaches all processes.
            aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(force_close=True)) as observer,
        ):
            looks = asyncio.create_task(self._look(observer))
            await asyncio.gather(*(self._client(session, number) for number in range(clients)))
            took = time.perf_counter() - began
            looks.cancel()
            await asyncio.wait([looks])
            if not looks.cancelled():
                await looks  # raises why it ended early
        return took

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        draw = np.random.default_rng(number)
        while self._left > 0 and time.perf_counter() < self._until:
            self._left -= 1
            ids = draw.integers(0, self._rows, self._shape).tolist()
            began = time.perf_counter()
            try:
                async with session.post("/predict", json={"ids": ids}) as response:
                    answer = await response.json() if response.status == 200 else {}
                    if len(answer.get("predictions", ())) == len(ids):
                        self.latencies.append(time.perf_counter() - began)
                    else:
                        self.failures.append(f"status {response.status}: {(await response.text())[:200]}")
            except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    async def _look(self, session: aiohttp.ClientSession) -> None:
        """Notes the versions of the processes."""
        while True:
            async with session.get("/version") as response:
                served = await response.json()
            steps = self.steps.setdefault(served["process"], [])
            if served["step"] not in steps:
                steps.append(served["step"])
            await asyncio.sleep(_LOOK_S)


def tables_in_memory(processes: list[int]) -> tuple[int, int]:
    """Returns the PSS of the pages of tables, in bytes: that of all processes, and the largest of one."""
    shares = [
        sum(mapping.pss for mapping in psutil.Process(process).memory_maps() if ".serving" in mapping.path)
        for process in processes
    ]
    return sum(shares), max(shares)


def main() -> int:
    """Runs the test. Returns the exit status: 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: http://127.0.0.1:8000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest time (default: 10)")
    parser.add_argument("--requests", type=int, default=1_000_000, help="most requests (default: 1000000)")
    parser.add_argument("--clients", type=int, default=8, help="requests at the same time (default: 8)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a request (default: 64)")
    parser.add_argument("--fields", type=int, default=4, help="ids of a sample (default: 4)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="ids are 0 to this, uniform (default: 1000000)")
    options = parser.parse_args()
    load = Load(options.url, options.batch, options.fields, options.rows)
    took = asyncio.run(load.run(options.clients, options.seconds, options.requests))
    if load.latencies:
        p50, p99 = np.percentile(load.latencies, [50, 99]) * 1e3
        rate = len(load.latencies) / took
        print(f"{len(load.latencies)} requests of {options.batch} x {options.fields} ids in {took:.1f} s: {rate:.0f}/s")
        print(f"latency: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(load.latencies) * 1e3:.1f} ms")
    print(f"failures: {len(load.failures)}")
    for failure in sorted(set(load.failures)):
        print(f"  {load.failures.count(failure)} x {failure}")
    for process, steps in sorted(load.steps.items()):
        print(f"process {process} has served steps {', '.join(map(str, steps))}")
    total, most = tables_in_memory(list(load.steps))
    print(f"tables in memory, PSS: {total / 1e6:.1f} MB in all processes, {most / 1e6:.1f} MB in one")
    return 1 if load.failures or not load.latencies else 0


if __name__ == "__main__":
    sys.exit(main())
