"""Serves the newest version of a model over HTTP, in several processes that share one copy of the tables.

    pip install -r examples/serving_http/requirements.txt
    python examples/serving_http/server.py serve --workers 2 --port 8000
    curl localhost:8000/version
    curl localhost:8000/predict -d '{"ids": [[1, 2, 3, 4]]}'

The model takes one input of ids, as that of publish.py does. Each process looks for a newer version every few seconds,
and switches to it while it answers requests. A version that cannot be loaded is logged, and the present one stays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn.supervisors import Multiprocess

# uvicorn starts each process with a fresh interpreter, which gets the options through the environment.
DIRECTORY, UPDATE_S = "SERVING_HTTP_DIRECTORY", "SERVING_HTTP_UPDATE_S"
_LOG = logging.getLogger("uvicorn.error")


def make_app() -> Starlette:
    """Loads the model in this process, and returns the application."""
    import tensorflow as tf  # only the processes that serve need it, not their parent

    import tf_sparse_ps as tsps

    model = tsps.serving.load(os.environ[DIRECTORY])

    async def predict(request: Request) -> JSONResponse:
        try:
            ids = integers((await request.json())["ids"])
            predictions = await run_in_threadpool(model, ids)
        except (KeyError, TypeError, ValueError, OverflowError, tf.errors.InvalidArgumentError) as error:
            problem = f'expected {{"ids": [[...], ...]}} with integers in the shape of the model\'s input: {error}'
            raise HTTPException(400, problem) from error
        return JSONResponse({"predictions": np.asarray(predictions).tolist()})

    async def version(request: Request) -> JSONResponse:
        return JSONResponse({"version": str(model.path), "step": model.step, "process": os.getpid()})

    async def update_forever() -> None:
        while True:
            await asyncio.sleep(float(os.environ[UPDATE_S]))
            try:
                if await run_in_threadpool(model.update):
                    _LOG.info("process %d serves %s, step %d", os.getpid(), model.path, model.step)
            except Exception as error:  # what is wrong with this version need not be wrong with the next one
                _LOG.warning("process %d stays at %s: %s", os.getpid(), model.path, error)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        updates = asyncio.create_task(update_forever())
        yield
        updates.cancel()

    return Starlette(
        routes=[Route("/predict", predict, methods=["POST"]), Route("/version", version)], lifespan=lifespan
    )


def integers(values: Any) -> NDArray[np.int64]:
    """Returns lists of integers as an array. Raises ValueError or OverflowError if they are none."""
    array = np.asarray(values)
    if array.dtype != np.int64:  # floating-point numbers would be rounded
        raise ValueError(f"{values!r:.100} are no integers of 64 bits, or lists of different lengths")
    return array


def main() -> None:
    """Starts the processes, and waits until a signal ends them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="directory of versions")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: any free one (default: 8000)")
    parser.add_argument("--update", type=float, default=2.0, help="seconds between looks for versions (default: 2)")
    options = parser.parse_args()
    os.environ |= {DIRECTORY: os.path.abspath(options.directory), UPDATE_S: str(options.update)}
    config = uvicorn.Config(
        "server:make_app",
        factory=True,
        host=options.host,
        port=options.port,
        workers=options.workers,
        access_log=False,
    )
    # uvicorn.run does not set TCP_NODELAY if there are several processes, and each answer then takes 40 ms more.
    listener = config.bind_socket()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Multiprocess(config, [listener]).run()


if __name__ == "__main__":
    main()
