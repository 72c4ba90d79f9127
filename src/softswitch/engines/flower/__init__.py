"""The other engine: the same round over Flower. Its public names are in ``softswitch.flower``."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError("softswitch.flower needs Flower: pip install 'softswitch[flower]'")
