"""Words that tell what a column is for, and which of two values is the positive one."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMES_OF_IDENTIFIERS = _words("id ids uuid guid key ssn identifier caseid recordid rowid serial")
NAMES_OF_COUNTS = _words("index idx rowname rownames rownum rownumber row nr no num number obs obsnumber")
"""Names of identifiers too, where nearly all values differ; else of amounts."""
NAMES_OF_NAMES = _words("id name code abbr no nr num number key flag")
"""What a column's name may end in behind its noun."""
NAMES_OF_LABELS = (
    _words("label labels target y outcome class classes response diagnosis"),
    _words(
        "default defaulted churn churned attrition survived died death dead mortality fraud spam approved denied late "
        "delayed cancelled readmitted malignant disease relapse event status result passed failed grade quality score "
        "price income salary wage sales cost amount rating species"
    ),
)
"""Words in the names of columns to predict: those that say so, and those that often are."""
NAMES_OF_CLIENTS = (
    _words(
        "client clients site hospital clinic center centre branch store shop school bank carrier airline plant factory "
        "station provider practice ward device machine institution"
    ),
    _words(
        "region country state province county city town district municipality village community college university "
        "department dept office agency company firm team household family subject patient participant user customer "
        "account farm field plot batch lab court judge origin airport zip zipcode area location neighborhood "
        "neighbourhood dealer seller vendor supplier doctor physician hub depot warehouse operator sector industry "
        "occupation cluster player reader animal litter"
    ),
)
"""Words in the names of columns that say whose row it is: those that say so, and those that often do."""
POSITIVE = _words(
    "1 true yes y t ja oui si sí positive pos present malignant late delayed default defaulted bad fail failed failure "
    "dead died death churn churned fraud spam sick ill disease diseased case event abnormal defective cancelled "
    "canceled relapse readmitted attrition left denied rejected + on"
)
NEGATIVE = _words(
    "0 false no n f nein non negative neg absent benign good ok pass passed normal healthy control alive paid none "
    "nondefault ham stayed approved accepted survived - off"
) | {"on time", "-1"}
