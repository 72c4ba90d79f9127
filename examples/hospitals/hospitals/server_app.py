"""What runs at the coordinator: no data, only a rule."""

import os

from hospitals.task import MOST_MISS_LOSS, network
from softswitch import SoftmaxSGM
from softswitch.flower import parameters, server_app
from softswitch.trackers import PrometheusTracker

METRICS = os.environ.get("HOSPITALS_METRICS")
"""Where Prometheus' node exporter looks for numbers, a file that ends in .prom; not set: none are written."""

app = server_app(
    SoftmaxSGM(alpha=50.0, step_size=2.0, local_step_size=0.5, tolerance=MOST_MISS_LOSS),
    parameters(network()),
    name="hospitals",
    local_steps=10,
    average_last=0.5,
    names=[f"hospital-{i}" for i in range(1, 6)],
    constraints=1,
    min_clients=3,
    wait=300.0,
    report_timeout=120.0,
    update_timeout=120.0,
    callbacks=[PrometheusTracker(METRICS, run="hospitals")] if METRICS else [],
)
