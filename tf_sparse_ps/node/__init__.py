"""Where ranks run: which share a machine, and where its tables lie."""
