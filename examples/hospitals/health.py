"""Whether a SuperLink or a SuperNode is well: `python health.py HOST:PORT`, by its --health-server-address.

Ends with 0 where it is serving, else with 1: what a container's health check, or a monitor, wants to know.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 5.0


def serving(address: str) -> bool:
    """Whether it answers within a few seconds that it is serving."""
    with grpc.insecure_channel(address) as channel:
        try:
            told = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
    return bool(told.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python health.py HOST:PORT")
    sys.exit(0 if serving(sys.argv[1]) else 1)
