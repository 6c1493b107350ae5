"""Neural collaborative filtering (He et al. 2017) on implicit feedback, with leave-one-out evaluation."""
