"""Read attentions, residual sums and feed-forwards out of a recorded graph.

- A linear layer is a module whose output is the product of its input with a matrix of its own (`linears.py`).
- An attention is a call of `nn.MultiheadAttention`, of Hugging Face's attention interface, of
  `scaled_dot_product_attention`, or a softmax of a product that is multiplied by a third tensor. Its output
  projection is the first linear layer after it.
- A residual sum adds two tensors of one shape, one of which (the skip input) the other (the branch) was made from, by
  way of a product. Without the product GELU's `x + 0.04 x^3` would be one.
- A feed-forward is what else is linear in a branch: one layer, or two of one input (gate and up), then one more.

A part belongs to the first sum that closes around it: that leaves long skips over whole blocks to nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from autodropout.attach.transformer.graph import (
    ADD,
    ATTENTION,
    CONTRACT,
    CONVOLVE,
    SOFTMAX,
    Graph,
)
from autodropout.attach.transformer.hooks import Argument, Item
from autodropout.attach.transformer.linears import Linear, find_linears, is_open


@dataclass(frozen=True)
class Attention:
    """One attention. Nodes are those that enter and leave its core."""

    call: int  # the module it belongs to; for the interface, the pseudo-call
    result: int
    query: int | None = None
    key: int | None = None  # may have its last two dimensions transposed
    value: int | None = None
    softmax: int | None = None  # its node, where the core is written out


@dataclass(frozen=True)
class Residual:
    """One residual sum."""

    sum: int
    skip: int  # the node every user of the skip input shares
    taker: int  # made from `skip`: the sum, or a cast before it
    branch: int
    joint: bool = False  # a second branch is added to an earlier sum: the skip input is the earlier one's


@dataclass(frozen=True)
class FeedForward:
    firsts: tuple[Linear, ...]
    last: Linear


@dataclass
class Branch:
    """One residual sum and what its branch holds; or an attention that no sum follows."""

    residual: Residual | None
    attentions: list[Attention] = field(default_factory=list)
    feedforward: FeedForward | None = None
    refused: str | None = None  # why the rest of the branch is no feed-forward, when it looks like one


class Parts:
    """The parts of one graph."""

    def __init__(self, graph: Graph, closed: frozenset[int]) -> None:
        """`closed`: calls whose inside is known by type and not looked into."""
        self.graph = graph
        self.closed = closed

    def is_open(self, node: int) -> bool:
        return is_open(self.graph, self.closed, node)

    @cached_property
    def linears(self) -> list[Linear]:
        return find_linears(self.graph, self.closed)

    @cached_property
    def attentions(self) -> list[Attention]:
        graph = self.graph
        found = []
        for number, call in enumerate(graph.calls):
            if any(graph.within(number, outer) for outer in self.closed):
                continue
            if call.attend is not None and 0 in call.outputs:
                nodes = [call.arguments.get(Argument(at, None)) for at in range(3)]
                found.append(Attention(number, call.outputs[0], *nodes))
            elif isinstance(call.module, nn.MultiheadAttention) and 0 in call.outputs:
                found.append(Attention(number, call.outputs[0]))
        known = [attention.call for attention in found]
        for number, node in enumerate(graph.nodes):
            if not self.is_open(number) or any(outer in known for outer in graph.around(number)):
                continue
            if node.function in ATTENTION and len(node.inputs) >= 3:
                found.append(Attention(node.call, number, *node.inputs[:3]))
            elif node.function in SOFTMAX:
                found += self._written_out(number)
        return sorted(found, key=lambda attention: attention.result)

    def _written_out(self, softmax: int) -> Iterator[Attention]:
        """softmax(... q k ...) v, where functions in between keep the shape."""
        graph = self.graph
        product = next((at for at in self._back(softmax) if graph.nodes[at].function in CONTRACT), None)
        if product is None or graph.nodes[product].weighted or len(graph.nodes[product].inputs) < 2:
            return
        query, key = graph.nodes[product].inputs[-2:]
        for at in self._keeping_shape(softmax):
            for user in graph.consumers[at]:
                operands = graph.nodes[user].inputs[-2:]
                if (
                    graph.nodes[user].function in CONTRACT
                    and not graph.nodes[user].weighted
                    and len(set(operands)) == 2
                ):
                    value = next(operand for operand in operands if operand != at)
                    yield Attention(self.owner(softmax), user, query, key, value, softmax)
                    return

    def owner(self, node: int) -> int:
        """The innermost call around a node that runs more than this one function: a softmax module is no attention."""
        return next(
            call for call in self.graph.around(node) if self.graph.calls[call].end - self.graph.calls[call].first > 2
        )

    def _back(self, node: int) -> Iterator[int]:
        """From a node back through moves and functions that keep the shape, itself first, by their first such input."""
        at: int | None = node
        while at is not None:
            yield at
            here = self.graph.nodes[at]
            if here.function in CONTRACT:
                return
            keep = (
                source
                for source in here.inputs
                if here.replay is not None or self.graph.nodes[source].shape == here.shape
            )
            at = next(keep, None)

    def _keeping_shape(self, node: int) -> Iterator[int]:
        """From a node on through moves and functions that keep the shape, itself first."""
        waiting = [node]
        while waiting:
            at = waiting.pop(0)
            yield at
            here = self.graph.nodes[at]
            waiting += [
                user
                for user in self.graph.consumers[at]
                if self.graph.nodes[user].function not in CONTRACT
                and (self.graph.nodes[user].shape == here.shape or self.graph.nodes[user].replay is not None)
            ]

    def modules_keeping_shape(self, start: int, end: int) -> list[tuple[int, Item]]:
        """Calls that return a node on the way from `start` to `end`, along functions that change no sizes, in order."""
        way = {node for node in self._keeping_shape(start) if self.graph.descends(end, node)}
        return [
            (number, item)
            for number, call in enumerate(self.graph.calls)
            for item, node in call.outputs.items()
            if node in way and call.end <= end and call.attend is None
        ]

    @cached_property
    def residuals(self) -> list[Residual]:
        graph = self.graph
        products = 0
        for number, node in enumerate(graph.nodes):
            if node.weighted or any(attention.result == number for attention in self.attentions):
                products |= 1 << number
        found: dict[int, Residual] = {}
        for number, node in enumerate(graph.nodes):
            if node.function not in ADD or len(node.inputs) != 2 or not self.is_open(number) or self._is_score(number):
                continue
            if any(graph.nodes[source].shape != node.shape for source in node.inputs):
                continue
            for skip, branch in (node.inputs, node.inputs[::-1]):
                residual = self._residual(number, skip, branch, found.get(skip))
                if residual is not None and graph.ancestors[branch] & ~graph.ancestors[residual.skip] & products:
                    found[number] = residual
                    break
        return list(found.values())

    def _is_score(self, number: int) -> bool:
        """Whether a node lies between a query and its softmax, as a sum with a bias for positions does."""
        graph = self.graph
        return any(
            found.query is not None
            and found.softmax is not None
            and graph.descends(found.softmax, number)
            and graph.descends(number, found.query)
            for found in self.attentions
        )

    def _residual(self, number: int, skip: int, branch: int, earlier: Residual | None) -> Residual | None:
        graph = self.graph
        if earlier is not None and not graph.descends(branch, skip):
            joined = graph.descends(branch, earlier.skip)
            return Residual(number, earlier.skip, earlier.taker, branch, joint=True) if joined else None
        taker, root = number, skip
        while not graph.descends(branch, root):  # a cast, say, between the skip input and the sum
            node = graph.nodes[root]
            if len(node.inputs) != 1 or node.weighted or graph.nodes[node.inputs[0]].shape != node.shape:
                return None
            taker, root = root, node.inputs[0]
        return Residual(number, root, taker, branch)

    def closing(self, node: int) -> Residual | None:
        """The first sum whose branch a node is in."""
        graph = self.graph
        return next(
            (r for r in self.residuals if graph.descends(r.branch, node) and graph.descends(node, r.skip)), None
        )

    @cached_property
    def branches(self) -> list[Branch]:
        """In forward order."""
        found = {residual: Branch(residual) for residual in self.residuals}
        alone = []
        for attention in self.attentions:
            residual = self.closing(attention.result)
            if residual is None:
                alone.append(Branch(None, [attention]))
            else:
                found[residual].attentions.append(attention)
        members: dict[Residual, list[Linear]] = {residual: [] for residual in self.residuals}
        for linear in self.linears:
            residual = self.closing(linear.output)
            if residual is not None and self.graph.descends(linear.input, residual.skip):
                members[residual].append(linear)
        for residual, branch in found.items():
            self._fill(branch, members[residual])
        return [
            branch for branch in (*found.values(), *alone) if branch.attentions or branch.feedforward or branch.refused
        ]

    def _fill(self, branch: Branch, linears: list[Linear]) -> None:
        """Find the feed-forward among the linear layers of a branch."""
        graph = self.graph
        results = [attention.result for attention in branch.attentions]
        rest = [
            linear
            for linear in linears
            if not any(graph.descends(r, linear.output) or graph.descends(linear.input, r) for r in results)
        ]
        if branch.attentions and len(rest) < 2:
            return
        if not rest:
            if branch.residual is not None and self._multiplies(branch.residual):
                branch.refused = "a branch without linear modules (experts, say, that are one tensor)"
            return
        firsts = [a for a in rest if not any(graph.descends(a.input, b.output) for b in rest)]
        lasts = [a for a in rest if not any(graph.descends(b.input, a.output) for b in rest)]
        if len(lasts) != 1 or len(firsts) + 1 != len(rest) or lasts[0] in firsts:
            branch.refused = f"a branch with {len(rest)} linear modules, which are not one feed-forward of two steps"
        elif len({first.input for first in firsts}) > 1:
            branch.refused = "the first linear layers have different inputs"
        elif any(node.function in SOFTMAX for first in firsts for node in graph.between(first.output, lasts[0].input)):
            branch.refused = "a softmax between its linear layers, and no attention that is understood"
        else:
            branch.feedforward = FeedForward(tuple(firsts), lasts[0])

    def _multiplies(self, residual: Residual) -> bool:
        """Whether a branch has a product of its own, and not only what earlier sums have closed around."""
        graph = self.graph
        inside = range(residual.skip + 1, residual.branch + 1)
        return any(graph.nodes[node].function in CONTRACT and self.closing(node) == residual for node in inside)

    def output_projection(self, attention: Attention) -> Linear | None:
        """The first linear layer after an attention, before the sum and any convolution."""
        residual = self.closing(attention.result)
        for linear in self.linears:
            if self.graph.descends(linear.input, attention.result):
                if any(node.function in CONVOLVE for node in self.graph.between(attention.result, linear.input)):
                    return None
                return linear if residual is None or self.graph.descends(residual.branch, linear.output) else None
        return None
