"""What the tests that move rows share."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
FOLDER = tempfile.mkdtemp(prefix="tf_sparse_ps-rows-", dir="/dev/shm")
os.environ["TFSPS_DIR"] = FOLDER

from tf_sparse_ps._compat import _keras  # noqa: E402

keras = _keras.keras
