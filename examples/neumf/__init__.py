"""Neural collaborative filtering (He et al. 2017) on implicit feedback, leave-one-out."""
