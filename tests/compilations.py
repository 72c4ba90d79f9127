"""A counter of compilations."""

import jax


class Compilations:
    """Counts how often XLA compiles anything."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"


COMPILATIONS = Compilations()
