"""An HTTP server of a directory that lists folders and answers requests for ranges, as object stores do.

    python -m benchmarks.file_server DIRECTORY ADDRESS PORT

Python's http.server has no ranges, which fsspec needs for files above 5 MiB.
"""

from __future__ import annotations

import html
import os
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route


def main(directory: str, address: str, port: str) -> None:
    """Serves until a signal ends the process."""
    root = Path(directory).resolve()

    def answer(request: Request) -> Response:
        path = (root / request.path_params["path"]).resolve()
        if not path.is_relative_to(root) or not path.exists():
            return Response(status_code=404)
        if path.is_dir():
            names = [entry.name + "/" * entry.is_dir() for entry in os.scandir(path)]
            return HTMLResponse("".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a><br>' for name in names))
        return FileResponse(path)

    application = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "HEAD"])])
    uvicorn.run(application, host=address, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
