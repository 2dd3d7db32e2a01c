"""Progress of long work, told every tenth of it."""

from __future__ import annotations

import logging


class Tenths:
    """Counts work that is done, and logs when another tenth of it is.

    Args:
        log: the logger of whoever works.
        what: is done, for the message: "decoder 8da4w.g32: read".
        total: amount of work.
        unit: what a million of it is called: MB, M parameters.
        done: how much of it was done before.
    """

    def __init__(
        self, log: logging.Logger, what: str, total: int, unit: str, done: int = 0
    ) -> None:
        self._log, self._what, self._total, self._unit = log, what, total, unit
        self._done = done

    def add(self, count: int) -> None:
        """So much more is done."""
        self.at(self._done + count)

    def at(self, done: int) -> None:
        """So much is done in all; less than before where something had to begin anew."""
        before, self._done = self._done, done
        tenths = 10 * self._done // self._total
        if tenths > 10 * before // self._total:
            self._log.info(
                "%s %d %% of %.1f %s", self._what, 10 * tenths, self._total / 1e6, self._unit
            )
