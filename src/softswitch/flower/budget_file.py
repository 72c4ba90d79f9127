"""What a client has told of its rows so far, in a file of its own: a restart does not begin anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from softswitch.flower.local_client import RefusalError
from softswitch.privacy.accountant import epsilon_of, levels_for, rounds_within
from softswitch.privacy.releases import Drawing, NoiseLevels, Releases
from softswitch.privacy.settings import RecordPrivacy
from softswitch.support.files import write_atomically


class SpentBudget:
    """Counts releases in a file, and refuses those that the budget does not allow.

    Args:
        file: where to count; it is made where there is none. All runs count together.
        privacy: the settings.
        drawing: how rows are drawn.
        planned: the releases that noise is found for: as many of each kind are allowed, and nothing need be computed.
            Where noise is given beside a budget, as many rounds as leave enough for the evaluations.

    Attributes:
        levels: the noise on each kind of release: found once, and then kept in the file. A client's process may start
            anew for every message.
    """

    def __init__(self, file: str | Path, privacy: RecordPrivacy, drawing: Drawing, planned: Releases) -> None:
        self._file = Path(file).expanduser()
        self._privacy, self._drawing, self._planned = privacy, drawing, planned
        self._file.parent.mkdir(parents=True, exist_ok=True)
        settings = json.loads(json.dumps([asdict(privacy), list(drawing), list(planned)]))
        with self._locked():
            if not self._file.exists():
                levels = levels_for(privacy, planned, drawing)
                self._check_a_round(levels)
                nothing = {"releases": list(Releases()), "sizes": None}
                self._write({**nothing, "levels": list(levels), "settings": settings})
            told = self._read()
        if told["settings"] != settings:
            raise ValueError(
                f"{self._file} counts by other settings: what was told of the same rows with other noise cannot be "
                "counted on; keep privacy, rounds, local_steps and evaluations as they were, and the rows"
            )
        self.levels = NoiseLevels(*told["levels"])

    @property
    def releases(self) -> Releases:
        """What was told so far."""
        return Releases(*self._read()["releases"])

    @property
    def epsilon(self) -> float:
        """ε of what was told so far."""
        return self._epsilon(self.releases)

    def charge(self, **more: int) -> None:
        """Count what is about to be told, before it is; raise ``RefusalError`` where the budget does not allow it.

        Args:
            more: how many releases of which kind, by the names of ``Releases``.
        """
        with self._locked():
            told = self._read()
            before = Releases(*told["releases"])
            after = before._replace(**{kind: getattr(before, kind) + many for kind, many in more.items()})
            if not self._allows(after, reports=after.reports > before.reports):
                raise RefusalError(
                    f"its privacy budget of {self._privacy.epsilon:g} does not allow another such answer"
                )
            self._write({**told, "releases": list(after)})

    def once(self, make: Callable[[], list[float]]) -> list[float]:
        """The numbers of rows as they were told: once made and counted, then always the same.

        Args:
            make: draws their noise.
        """
        with self._locked():
            told = self._read()
            if told.get("sizes") is None:
                told["releases"][Releases._fields.index("sizes")] = 1
                told["sizes"] = make()
                self._write(told)
            return [float(size) for size in told["sizes"]]

    def _check_a_round(self, levels: NoiseLevels) -> None:
        """Raise where noise is given beside a budget, and not even one round fits in with its evaluations."""
        privacy, planned = self._privacy, self._planned
        if not rounds_within(privacy, levels, self._drawing, 1, self._local_steps, planned.evaluations):
            raise ValueError(
                f"epsilon = {privacy.epsilon:g} does not allow a single round with noise = {levels.step:.3g}: raise "
                "the noise, or leave it out, and it is found"
            )

    @property
    def _local_steps(self) -> int:
        return self._planned.steps // self._planned.reports

    def _allows(self, after: Releases, *, reports: bool) -> bool:
        if self._privacy.epsilon is None:
            return True
        planned = self._planned
        if self._privacy.noise is None:  # it was found for these: more of one kind would take from another
            return all(many <= most for many, most in zip(after, planned, strict=True))
        kept = after._replace(  # a report is worth nothing without its direction, nor a run without its judging
            steps=after.steps + self._local_steps * reports,
            evaluations=max(after.evaluations, planned.evaluations),
            sizes=planned.sizes,
        )
        return self._epsilon(kept) <= self._privacy.epsilon

    def _epsilon(self, releases: Releases) -> float:
        return epsilon_of(releases, self.levels, self._drawing, self._privacy.delta)

    def _locked(self) -> FileLock:
        return FileLock(self._file.with_name(f".{self._file.name}.lock"))

    def _read(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            Releases(*(int(many) for many in told["releases"]))
            NoiseLevels(*(float(level) for level in told["levels"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusalError(f"the file that counts what it told cannot be read: {self._file.name}") from error
        return told

    def _write(self, told: dict[str, Any]) -> None:
        write_atomically(self._file, json.dumps(told).encode())
