"""`python -m tf_sparse_ps run ...`, the same as `tf-sparse-ps run ...`."""

import sys

from tf_sparse_ps.launch import main

if __name__ == "__main__":
    sys.exit(main())
