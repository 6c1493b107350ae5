"""All cases. Importing this module registers them."""

from __future__ import annotations

import cases_covered
import cases_layers
import cases_refused
import cases_saving
import cases_training

__all__ = ["cases_covered", "cases_layers", "cases_refused", "cases_saving", "cases_training"]
