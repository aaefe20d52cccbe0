"""Find the sites of a Transformer: eleven per layer (docs/semantics.md; the paper's section on Transformers).

    model + example --record--> graph --parts--> attentions, sums, feed-forwards --> sites, each with a place

Nothing here knows a model by name. A layer counts one attention and the feed-forward after it; a cross-attention
opens a layer of its own, with the same roles, so that it takes the self-attention's patterns.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from autodropout.attach.sites import FUSED, Finding, NoSites, Place
from autodropout.attach.transformer import attention as multihead
from autodropout.attach.transformer import skips, torch_layers
from autodropout.attach.transformer.graph import Call, Graph, record
from autodropout.attach.transformer.heads import channel_axis, gathered, projected
from autodropout.attach.transformer.hooks import OnInput, OnOutput
from autodropout.attach.transformer.interface import InInterface
from autodropout.attach.transformer.layouts import Layout, Tokens, Weights, shown
from autodropout.attach.transformer.linears import Linear
from autodropout.attach.transformer.parts import Attention, FeedForward, Parts, Residual
from autodropout.attach.transformer.sublayers import SubLayer, counted, numbered, refuse_shared
from autodropout.attach.transformer.torch_layers import InLayer

QUERY, KEY, VALUE, PROBABILITIES, CONTEXT, OUTPUT = (*multihead.INNER, multihead.OUTPUT)
SKIP = "attention.residual"
FF_INPUT, FF_HIDDEN, FF_OUTPUT, FF_SKIP = (
    "feedforward.input",
    "feedforward.hidden",
    "feedforward.output",
    "feedforward.residual",
)


def find(model: nn.Module, example: Any) -> Finding:
    """The sites of a Transformer, in forward order, found on one eval forward. Raises `NoSites` when there are none."""
    graph = record(model, example)
    sublayers = sorted(_Search(graph).sublayers(), key=lambda sub: sub.position)
    refuse_shared(graph, sublayers)
    sites = numbered(sublayers)
    missed = tuple(dict.fromkeys(miss for sub in sublayers for miss in sub.missed))  # once, however often it runs
    if not sites:
        raise NoSites(
            "this model has no sites of a Transformer",
            "looked for nn.MultiheadAttention, the attention interface of transformers, scaled_dot_product_attention, "
            "and a softmax between two products",
            *(f"not reached: {miss}" for miss in missed),
        )
    return Finding("transformer", tuple(sites), tuple(map(str, missed)), counted(missed))


class _Search:
    """Turns the parts of a graph into sub-layers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layers = [
            number
            for number, call in enumerate(graph.calls)
            if torch_layers.is_stock(call.module) or isinstance(call.module, torch_layers.EncoderLayer)
        ]
        self.parts = Parts(graph, frozenset(self.layers))

    def shape(self, node: int) -> tuple[int, ...]:
        return self.graph.nodes[node].shape

    def sublayers(self) -> Iterator[SubLayer]:
        for number in self.layers:
            yield from self.torch_layer(number)
        if not self.layers and not self.parts.attentions:
            return  # sums of linear layers alone are no Transformer
        for branch in self.parts.branches:
            for found in branch.attentions:
                sub, layout = self.attention(found)
                self.skip(sub, SKIP, branch.residual, layout)
                yield sub
            if branch.feedforward is not None:
                yield self.feedforward(
                    branch.feedforward, None if branch.attentions else branch.residual, self.tokens(branch.residual)
                )
            elif branch.refused is not None and branch.residual is not None:
                call = self.graph.calls[self.graph.nodes[branch.residual.sum].call]
                sub = SubLayer("feedforward", call.path, branch.residual.sum)
                sub.miss(branch.refused, FF_INPUT, FF_HIDDEN, FF_OUTPUT, FF_SKIP)
                yield sub

    def tokens(self, residual: Residual | None) -> Tokens:
        """Time first or batch first, as the last attention before this sum has it."""
        before = [found for found in self.parts.attentions if residual is not None and found.result < residual.sum]
        return self.attention(before[-1])[1] if before else Tokens()

    # nn.TransformerEncoderLayer, nn.TransformerDecoderLayer

    def torch_layer(self, number: int) -> Iterator[SubLayer]:
        call = self.graph.calls[number]
        layer = call.module
        if not torch_layers.is_stock(layer):
            sub = SubLayer("attention", call.path, call.first)
            sub.miss("a subclass of nn.TransformerEncoderLayer with code of its own: hooks would change its fast path")
            yield sub
            return
        assert isinstance(layer, torch_layers.EncoderLayer | torch_layers.DecoderLayer)
        inside = {c.module: c for n, c in enumerate(self.graph.calls) if n != number and self.graph.within(n, number)}
        for name, residual in (("self_attn", torch_layers.SELF), ("multihead_attn", torch_layers.CROSS)):
            module = getattr(layer, name, None)
            if module is not None:
                sub = self.multihead(inside[module])
                (skip,) = (node for a, node in inside[module].arguments.items() if a.name == "query")
                sub.add(SKIP, shown(self.order(layer.self_attn), self.shape(skip)), InLayer(call.path, residual))
                yield sub
        first, last = inside[layer.linear1], inside[layer.linear2]
        sub = SubLayer("feedforward", call.path, first.first)
        nodes = (*first.arguments.values(), *last.arguments.values(), last.outputs[None], last.outputs[None])
        for role, node in zip((FF_INPUT, FF_HIDDEN, FF_OUTPUT, FF_SKIP), nodes, strict=True):
            sub.add(role, shown(self.order(layer.self_attn), self.shape(node)), InLayer(call.path, role))
        yield sub

    @staticmethod
    def order(module: nn.MultiheadAttention) -> Tokens:
        return Tokens(time_first=not module.batch_first)

    def multihead(self, call: Call) -> SubLayer:
        """The parts of one `nn.MultiheadAttention`."""
        module = call.module
        assert isinstance(module, nn.MultiheadAttention)
        sub = SubLayer("attention", call.path, call.first)
        tokens = self.order(module)
        output = shown(tokens, self.shape(call.outputs[0]))  # (N, T, C)
        keys = [node for argument, node in call.arguments.items() if argument.name == "key"]
        sources = shown(tokens, self.shape(keys[0]))[1] if keys else output[1]
        heads, size = module.num_heads, module.head_dim
        of_query, of_key = (output[0], heads, output[1], size), (output[0], heads, sources, size)
        weights = (output[0], heads, output[1], sources)
        reason = multihead.why_not(module)
        for role, shape in zip(multihead.INNER, (of_query, of_key, of_key, weights, of_query), strict=True):
            if reason is None:
                sub.add(role, shape, multihead.InMultihead(call.path, role))
        if reason is not None:
            sub.miss(reason, *multihead.INNER)
        if multihead.is_stock(module):
            sub.add(OUTPUT, output, multihead.InMultihead(call.path, OUTPUT))
        else:
            sub.miss("its forward is not the class's", OUTPUT)
        return sub

    # everything else

    def attention(self, found: Attention) -> tuple[SubLayer, Tokens]:
        call = self.graph.calls[found.call]
        if isinstance(call.module, nn.MultiheadAttention):
            return self.multihead(call), self.order(call.module)
        sub = SubLayer("attention", call.path, found.result)
        projection = self.parts.output_projection(found)
        tokens = (
            self.interface(sub, found, call) if call.attend is not None else self.written_out(sub, found, projection)
        )
        if projection is None:
            sub.miss("no linear layer follows the attention", OUTPUT)
        else:
            self.output(sub, OUTPUT, projection.call, tokens)
        return sub, tokens

    def interface(self, sub: SubLayer, found: Attention, call: Call) -> Tokens:
        """Hugging Face's attention interface."""
        attend = call.attend
        assert attend is not None
        query, key, value = (self.shape(node) for node in (found.query, found.key, found.value) if node is not None)
        shapes = (query, key, value, (*query[:3], key[2]), (*query[:3], value[3]))
        for role, shape in zip(multihead.INNER, shapes, strict=True):
            if role == PROBABILITIES and not attend.explained:
                sub.miss(
                    f"{attend.implementation!r} attention is more than softmax(q k + mask) v, or has no full mask",
                    role,
                )
            else:
                sub.add(role, shape, InInterface(call.path, role, attend))
        return Tokens()

    def written_out(self, sub: SubLayer, found: Attention, projection: Linear | None) -> Tokens:
        """Attention in the model's own code: what modules take and return."""
        tokens = Tokens()
        count = 1
        for role, node in ((QUERY, found.query), (KEY, found.key), (VALUE, found.value)):
            source = projected(self.parts, node)
            if source is None:
                sub.miss("not a view of one linear layer's output", role)
                continue
            linear, heads = source
            tokens, count = Tokens(heads.time_first), max(count, heads.count)
            self.output(sub, role, linear.call, heads)
        if len(sub.missed) == 3:
            tokens = self.guessed(found)
        self.probabilities(sub, found, count)
        gathering = gathered(self.parts, found.result, projection) if projection is not None else None
        if projection is None or gathering is None:
            sub.miss("not a view of what the output projection is given", CONTEXT)
        else:
            self.input(sub, CONTEXT, projection, gathering)
        return tokens

    def guessed(self, found: Attention) -> Tokens:
        """Time first or batch first, by the length of an attention's rows, where its projections do not tell."""
        residual = self.parts.closing(found.result)
        shape = self.shape(residual.sum) if residual is not None else ()
        length = self.shape(found.result if found.softmax is None else found.softmax)[-2]
        return Tokens(time_first=len(shape) == 3 and shape[0] == length != shape[1])

    def probabilities(self, sub: SubLayer, found: Attention, heads: int) -> None:
        if found.softmax is None:
            sub.miss(FUSED, PROBABILITIES)
            return
        modules = self.parts.modules_keeping_shape(found.softmax, found.result)
        if not modules:
            sub.miss("no module sees them; put an nn.Dropout(0.0) between softmax and product", PROBABILITIES)
            return
        number, item = modules[-1]
        call, layout = self.graph.calls[number], Weights(heads)
        sub.add(
            PROBABILITIES, shown(layout, self.shape(call.outputs[item])), OnOutput(call.path, item, layout), (number,)
        )

    def feedforward(self, found: FeedForward, residual: Residual | None, tokens: Tokens) -> SubLayer:
        paths = [self.graph.calls[linear.call].path for linear in (*found.firsts, found.last)]
        sub = SubLayer("feedforward", _common(paths), found.firsts[0].output)
        self.shared_input(sub, found, tokens)
        self.input(sub, FF_HIDDEN, found.last, tokens)
        self.output(sub, FF_OUTPUT, found.last.call, tokens)
        self.skip(sub, FF_SKIP, residual, tokens)
        return sub

    def shared_input(self, sub: SubLayer, found: FeedForward, tokens: Tokens) -> None:
        """Mask once what all first layers are given: in the module that gives it to them and to nobody else."""
        node = found.firsts[0].input
        inside = [self.graph.calls[first.call] for first in found.firsts]

        def is_ours(user: int) -> bool:
            return any(call.holds(user) for call in inside)

        for number, call in reversed(list(enumerate(self.graph.calls))):
            argument = next((a for a, given in call.arguments.items() if given == node), None)
            users = [user for user in self.graph.consumers[node] if call.holds(user)]
            if (
                argument is not None
                and all(call.holds(first.output) for first in found.firsts)
                and all(map(is_ours, users))
            ):
                self.add(sub, FF_INPUT, node, tokens, OnInput(call.path, argument, tokens), number)
                return
        if all(map(is_ours, self.graph.consumers[node])):
            for number, call in enumerate(self.graph.calls):
                for item, output in call.outputs.items():
                    if output == node and call.attend is None and call.holds(node):
                        self.add(sub, FF_INPUT, node, tokens, OnOutput(call.path, item, tokens), number)
                        return
        sub.miss("several linear layers share it, and no module holds it for them alone", FF_INPUT)

    def input(self, sub: SubLayer, role: str, linear: Linear, layout: Layout) -> None:
        place = OnInput(self.graph.calls[linear.call].path, linear.argument, layout)
        self.add(sub, role, linear.input, layout, place, linear.call)

    def output(self, sub: SubLayer, role: str, number: int, layout: Layout) -> None:
        call = self.graph.calls[number]
        self.add(sub, role, call.outputs[None], layout, OnOutput(call.path, None, layout), number)

    def add(self, sub: SubLayer, role: str, node: int, layout: Layout, place: Place, number: int) -> None:
        if len(self.shape(node)) < 3:
            sub.miss(f"its tensor has shape {self.shape(node)}: samples and tokens in one dimension", role)
        else:
            sub.add(role, shown(layout, self.shape(node)), place, (number,))

    def skip(self, sub: SubLayer, role: str, residual: Residual | None, layout: Tokens) -> None:
        if residual is None or residual.joint:
            sub.miss("no sum with a skip input of its own closes this branch", role)
            return
        shape = self.shape(residual.skip)
        ends = (channel_axis(self.graph, node) for node in (residual.branch, residual.skip))
        axis = next((axis for axis in ends if axis is not None), None if len(shape) > 3 else len(shape) - 1)
        if axis is None or axis not in (1, len(shape) - 1):
            sub.miss(f"which axes of its {len(shape)}-D tensor are tokens and channels is not seen", role)
            return
        if axis < len(shape) - 1:
            layout = Tokens(channels_second=True)
        reached = skips.reach(self.graph, residual, layout)
        if reached is None:
            sub.miss("no module holds the skip input for the sum alone, or begins and ends its branch", role)
        else:
            sub.add(role, shown(layout, self.shape(residual.skip)), reached.place, reached.calls)


def _common(paths: list[str]) -> str:
    """The path of the innermost module that holds all of these."""
    first, *others = ([*path.split(".")[:-1]] for path in paths)
    length = next((at for at, part in enumerate(first) if any(o[at : at + 1] != [part] for o in others)), len(first))
    return ".".join(first[:length])
