"""The server of the three sites."""

import numpy as np

from softswitch import SoftmaxSGM
from softswitch.flower import server_app

LIMIT = 900.0  # a generous limit for slow machines; it only stops runs that hang

app = server_app(
    SoftmaxSGM(alpha=1.0, step_size=0.3, tolerance=0.1),
    {"w": np.zeros(2, np.float32)},
    name="small",
    names=["site-1", "site-2", "site-3"],
    min_clients=2,
    wait=LIMIT,
    report_timeout=LIMIT,
    update_timeout=LIMIT,
)
