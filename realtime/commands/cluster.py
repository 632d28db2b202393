"""``voicewire cluster``: run engines, gateways and a door on Ray, from one YAML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from realtime.cluster.config import ClusterConfig, load_cluster_config
from realtime.cluster.leaving_nodes import MAX_LEAVE_S
from realtime.config import ConfigError

WRONG_SETTINGS = 2
# Time for the controller's steps around a drain.
LEAVE_SLACK_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, act, about in (
        ("up", up, "start the cluster, or change a running one to the file"),
        ("status", status, "print the replicas, one a line"),
        ("down", down, "drain and stop all replicas"),
        ("leave", leave, "drain the replicas of this machine, which is about to end"),
    ):
        action = actions.add_parser(name, help=about, description=about)
        action.add_argument("file", type=Path, metavar="FILE.yaml", help="docs/guides/cluster.md")
        action.set_defaults(act=act)
    actions.choices["up"].add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="time for all replicas to be ready (600)"
    )


def run(args: argparse.Namespace) -> int:
    try:
        config = load_cluster_config(args.file)
        require_ray()
    except ConfigError as error:
        print(f"voicewire cluster: {error}", file=sys.stderr)
        return WRONG_SETTINGS
    from realtime.cluster import deploy

    deploy.connect(config.name)
    args.act(config, args)
    return 0


def require_ray() -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ConfigError("Ray is missing: install voicewire[cluster]") from None


def up(config: ClusterConfig, args: argparse.Namespace) -> None:
    from realtime.cluster import deploy

    deploy.up(config)
    found = deploy.wait_until_ready(config.name, args.timeout)
    door = next(replica.url for replica in found.replicas if replica.kind == "door")
    print(f"door  {door}", flush=True)


def status(config: ClusterConfig, args: argparse.Namespace) -> None:
    from realtime.cluster import deploy

    found = deploy.status(config.name)
    for replica in sorted(found.replicas, key=lambda one: one.name):
        load = f"{replica.num_connections} connections, {replica.num_active_responses} active responses"
        print(f"{replica.name}  {replica.state}  {replica.url}  {load if replica.kind == 'gateway' else ''}".rstrip())
    for kind, error in found.errors.items():
        print(f"{kind}: {error}", file=sys.stderr)


def down(config: ClusterConfig, args: argparse.Namespace) -> None:
    from realtime.cluster import deploy

    deploy.down(config.name, config.drain_timeout_s + 60)


def leave(config: ClusterConfig, args: argparse.Namespace) -> None:
    from realtime.cluster import deploy

    deploy.leave(config.name, leave_timeout_s(config))


def leave_timeout_s(config: ClusterConfig) -> float:
    return config.drain_timeout_s + MAX_LEAVE_S + LEAVE_SLACK_S
