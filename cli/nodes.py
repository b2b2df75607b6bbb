"""The options of `edl schedule serve` about nodes that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..common.errors import UsageError
from ..common.foreign import must_be
from .paths import LocalPath
from .place import Function

if TYPE_CHECKING:
    from ..scheduler.asking.make import Made
    from ..scheduler.policy import Policy

_OPTIONS = (
    click.option(
        "--nodes_by",
        type=click.Choice(["pods", "provisioning", "nodepool"]),
        help="Ask for the nodes that would pay: by pods that wait, by ProvisioningRequests of the "
        "cluster autoscaler, or by the limit of a Karpenter NodePool.",
    ),
    click.option("--pool", metavar="KEY=VALUE,...", help="Labels of the nodes that come and go."),
    click.option("--spot", metavar="KEY=VALUE", help="The label of those that are spot nodes."),
    click.option("--node", metavar="cpu=4,memory=16Gi", help="What pods get of a new node."),
    click.option("--min_nodes", type=click.IntRange(0), help="[default: 0]"),
    click.option("--max_nodes", type=click.IntRange(1), help="[default: 10]"),
    click.option("--nodepool", metavar="NAME", help="The NodePool, with --nodes_by nodepool."),
    click.option(
        "--prices",
        type=LocalPath(exists=True, dir_okay=False),
        help="YAML of $ an hour: deadlines and budgets of jobs are held by it.",
    ),
    click.option(
        "--band",
        metavar="LOW:HIGH",
        help="Of utility, for jobs with neither. [default: 0.35:0.65, AdaptDL's]",
    ),
    click.option("--boot", type=float, metavar="SECONDS", help="Of a new node. [default: 120]"),
    click.option(
        "--freeze",
        type=float,
        metavar="SECONDS",
        help="No change so soon after one; fewer nodes must be right for so long. [default: 600]",
    ),
    click.option("--placeholder_image", metavar="IMAGE", help="Of pods that stand for nodes."),
)


_NAMES = (
    *("nodes_by", "pool", "spot", "node", "min_nodes", "max_nodes"),
    *("nodepool", "prices", "band", "boot", "freeze", "placeholder_image"),
)


def nodes_options(command: Function) -> Function:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options out of all that were given, and return those that were said."""
    taken = {name: given.pop(name) for name in _NAMES}
    return {name: value for name, value in taken.items() if value is not None}


def told(nodes: object) -> str:
    """Return what a plan says of nodes, in a line. Raises UsageError where that is no sense."""
    try:
        must_be(nodes, {"here": dict, "wanted": dict, "why": str, "asked": str}, "nodes")
    except ValueError as error:
        raise UsageError(f"The plan says of nodes what makes no sense: {error}.") from error
    assert isinstance(nodes, dict)
    here, wanted = (
        " and ".join(f"{count} {market}" for market, count in nodes[key].items())
        for key in ("here", "wanted")
    )
    return f"Nodes: {here} here, {wanted} wanted: {nodes['why']}; {nodes['asked']}."


def made(nodes: dict[str, Any], policy: Policy, in_cluster: bool) -> Made | None:
    """Return an autoscaler; None where none is asked for. Raises UsageError."""
    if not nodes:
        return None
    if "nodes_by" not in nodes:
        flag = next(iter(nodes))
        raise UsageError(f"--{flag} is of nodes that come and go: add --nodes_by.")
    if not in_cluster:
        raise UsageError("--nodes_by is of a cluster: add --runtime kubernetes.")
    from ..scheduler.asking.make import Said, make

    return make(Said(**nodes), policy)
