"""How long a training has taken, and when it is time to say something or to write a checkpoint."""

import time

SECONDS_BETWEEN_REPORTS = 1.0
SECONDS_BETWEEN_CHECKPOINTS = 60.0
LARGEST_SHARE_OF_CHECKPOINTS = 0.03
"""Of the time. Weights and moments of a large catalogue are hundreds of megabytes."""


class Clock:
    """Seconds of training, those before a resume included, and when to speak up."""

    def __init__(self, seconds: float, step: int) -> None:
        self._began = time.perf_counter() - seconds
        self._reported = self._saved = time.perf_counter()
        self._pause = 0.0
        self._aside = 0.0
        self._step_reported = step

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def is_time_to_report(self) -> bool:
        return time.perf_counter() - self._reported > SECONDS_BETWEEN_REPORTS

    def is_time_to_checkpoint(self, *, at_mark: bool) -> bool:
        usual = 0.0 if at_mark else SECONDS_BETWEEN_CHECKPOINTS
        return time.perf_counter() - self._saved >= max(usual, self._pause)

    def note_checkpoint(self, began: float) -> None:
        """One was written, begun at `began`: the longer it took, the longer until the next."""
        self._saved = time.perf_counter()
        self._pause = (self._saved - began) / LARGEST_SHARE_OF_CHECKPOINTS

    def leave_out(self, began: float) -> float:
        """What was done since `began` does not count as training when it comes to speed. Returns its seconds."""
        seconds = time.perf_counter() - began
        self._aside += seconds
        return seconds

    def steps_per_second(self, step: int) -> float:
        """Since the last report."""
        now = time.perf_counter()
        speed = (step - self._step_reported) / max(1e-9, now - self._reported - self._aside)
        self._reported, self._step_reported, self._aside = now, step, 0.0
        return speed
