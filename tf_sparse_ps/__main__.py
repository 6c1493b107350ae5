"""The command line: `python -m tf_sparse_ps` is the same as `tf-sparse-ps`."""

import sys

from tf_sparse_ps.cli import main

if __name__ == "__main__":
    sys.exit(main())
