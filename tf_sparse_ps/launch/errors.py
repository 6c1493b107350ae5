"""What keeps a job from being started, or from going on."""

from __future__ import annotations


class LaunchError(Exception):
    """The job cannot be started.

    Attributes:
      status: The launcher's exit status: 2 for a mistake in the arguments, of this launcher or another.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        """What is wrong, for the user."""
        super().__init__(text)
        self.status = status
