"""softswitch with its defaults, once with compilation and once compiled already: only the tolerance is given."""

from __future__ import annotations

from typing import Any

import numpy as np

import softswitch as ss
from benchmarks.tables.cases import CASES, Case
from models_noted import CaseFile, Trace, solve
from softswitch.tables.constraints import build_problem


def vector(params: Any) -> np.ndarray:
    """Weights, the constant last."""
    (layer,) = params
    return np.append(np.asarray(layer["w"], float)[:, 0], np.asarray(layer["b"], float))


def method(case_file: CaseFile, trace: Trace) -> None:
    """Run twice, and note the iterate of each exchange, and the answer."""
    case: Case = next(one for one in CASES if one.name == case_file.name)
    columns, client = case.columns()
    for setting in ("cold: with compilation", "warm: compiled already"):
        trace.begin(setting)
        made = build_problem(case.kind, columns["x"].shape[1], ())
        data = ss.ClientData.from_arrays(columns, client, strata=made.strata)
        callbacks = [lambda news: trace.note(lambda: vector(news.state.params))]
        logging = ss.Logging(callbacks=callbacks, progress=False)
        result = ss.solve(made.problem, data, tolerance=case.tolerance, logging=logging)
        trace.note(lambda result=result: vector(result.params))


if __name__ == "__main__":
    solve(method)
