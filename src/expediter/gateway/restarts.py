"""How long to wait before a process that died is started again."""

RESTART_SECONDS = 0.5
MAX_RESTART_SECONDS = 30.0


class RestartPause:
    """Doubles with each death in a row; who ran for the longest pause begins anew."""

    def __init__(self) -> None:
        self._seconds = RESTART_SECONDS

    def after(self, ran_seconds: float) -> float:
        """The pause for a process that ran for so long."""
        if ran_seconds >= MAX_RESTART_SECONDS:
            self._seconds = RESTART_SECONDS
        pause = self._seconds
        self._seconds = min(2 * pause, MAX_RESTART_SECONDS)
        return pause
