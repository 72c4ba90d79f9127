"""A diagnostic: a problem detected in a run, with its evidence and advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DiagnosticCode(StrEnum):
    """The kind of problem."""

    DIVERGED = "diverged"
    NO_VALUES = "no-values"
    VOID_ROUNDS = "void-rounds"
    MISSING_STRATA = "missing-strata"
    CLIENT_DROPOUT = "client-dropout"
    EXCLUDED_CLIENTS = "excluded-clients"
    SUPPRESSED_CLASSES = "suppressed-classes"
    NEVER_FEASIBLE = "never-feasible"
    INFEASIBLE_CLIENT = "infeasible-client"
    INCOMPATIBLE_CONSTRAINTS = "incompatible-constraints"
    SWITCH_NEVER_PASSES = "switch-never-passes"
    RARELY_FEASIBLE = "rarely-feasible"
    INACTIVE_CONSTRAINT = "inactive-constraint"
    MASKED_WORST_CLIENT = "masked-worst-client"
    LIMIT_CYCLE = "limit-cycle"
    NOISY_SWITCH = "noisy-switch"
    STEP_SIZE_TOO_LARGE = "step-size-too-large"
    UNSTABLE_OBJECTIVE = "unstable-objective"
    FEW_AVERAGED_ROUNDS = "few-averaged-rounds"
    STILL_IMPROVING = "still-improving"
    DIVERGED_RESTARTS = "diverged-restarts"
    NO_BETTER_THAN_START = "no-better-than-start"
    NO_BETTER_THAN_CONSTANT = "no-better-than-constant"
    TRIMMED_VIOLATION = "trimmed-violation"
    OUTLIER_VALUES = "outlier-values"
    INCONSISTENT_UPDATES = "inconsistent-updates"
    UPDATE_SCALE_MISMATCH = "update-scale-mismatch"
    UNKNOWN_BENEFIT = "unknown-benefit"
    CLIPPED_ROWS = "clipped-rows"
    NOISE_EXCEEDS_BOUND = "noise-exceeds-bound"


@dataclass(frozen=True)
class Diagnostic:
    """A problem detected in a run.

    Attributes:
        code: The kind of problem.
        evidence: What in the run points to it.
        advice: What to try.
        suggests_more_rounds: Whether the advice includes a longer run.
    """

    code: DiagnosticCode
    evidence: str
    advice: str
    suggests_more_rounds: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.evidence}. {self.advice}."
