"""Keras layers over shared tables."""

from tf_sparse_ps.layers.embedding import Embedding
from tf_sparse_ps.layers.embedding_collection import EmbeddingCollection
from tf_sparse_ps.layers.embedding_reduce import EmbeddingReduce

__all__ = ["Embedding", "EmbeddingCollection", "EmbeddingReduce"]
