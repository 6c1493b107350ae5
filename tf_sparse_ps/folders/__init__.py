"""Opens, creates and removes folders so that other users of the machine cannot redirect the library.

`Folder` holds a directory descriptor. The functions of `path_walk` open a path one component at a time, never follow a
link that another user controls, and check owner and mode of every component. Names in a folder are then opened,
renamed and removed relative to its descriptor. The trust model is in SECURITY.md.
"""

from tf_sparse_ps.folders.folder import (
    PROBE,
    Folder,
    open_regular,
    read_regular,
    remove_folder,
    sync_file,
    sync_folder,
)
from tf_sparse_ps.folders.path_walk import Trust

__all__ = ["PROBE", "Folder", "Trust", "open_regular", "read_regular", "remove_folder", "sync_file", "sync_folder"]
