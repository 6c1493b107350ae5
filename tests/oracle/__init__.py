"""The shadow oracle: random jobs are killed and restarted, and compared with a plain NumPy model. See `__main__.py`."""
