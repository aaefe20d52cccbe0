"""Tiny Transformers of every kind that must work, and rules that leave marks instead of dropping."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from autodropout.attach.sites import Finding
from autodropout.attach.transformer.find import find as find  # tests take all they need from here
from autodropout.layers.drop import Drop

BATCH, LENGTH, TARGET, WIDTH, HEADS = 2, 9, 7, 32, 4
SIZE = WIDTH // HEADS
INNER = 64

ATTENTION = tuple(
    f"attention.{part}" for part in ("query", "key", "value", "probabilities", "context", "output", "residual")
)
FEEDFORWARD = tuple(f"feedforward.{part}" for part in ("input", "hidden", "output", "residual"))
ROLES = ATTENTION + FEEDFORWARD
PER_HEAD = ATTENTION[:5]


@dataclass(frozen=True)
class Scale:
    """Everything times `by`."""

    by: float = 2.0

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return h * self.by


@dataclass(frozen=True)
class FirstHead:
    """The first head times `by`."""

    by: float = 3.0

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        assert h.dim() == 4
        return torch.cat((h[:, :1] * self.by, h[:, 1:]), 1)


@dataclass(frozen=True)
class Spy:
    """Unchanged, but noted. (A new tensor: a drop that acts returns one.)"""

    seen: list[tuple[int, ...]] = field(default_factory=list, hash=False, compare=False)

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        self.seen.append(tuple(h.shape))
        return h * 1.0


@dataclass(frozen=True)
class Noise:
    """Random, from the seed alone: what a mask does, without its shape."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        cells = torch.arange(h.numel(), device=h.device).reshape(h.shape)
        return h * ((cells * 40503 + seed) % 65536 > rate * 65536).to(h.dtype)


def put(
    model: nn.Module, finding: Finding, rule: object, rate: float = 0.5, only: Callable[..., bool] = lambda site: True
):
    """A drop with this rule at every site that `only` lets through; by site name."""
    drops = {}
    for number, site in enumerate(finding.sites):
        if only(site):
            drops[site.name] = Drop(rule() if isinstance(rule, type) else rule, rate, number)
            site.place.put(model, drops[site.name])
    return drops


def run(model: nn.Module, example) -> Tensor:
    """The main output."""
    if isinstance(example, Tensor):
        output = model(example)
    elif isinstance(example, tuple):
        output = model(*example)
    else:
        output = model(**example)
    if isinstance(output, Tensor):
        return output
    return output[0] if isinstance(output, tuple) else (output["logits"] if "logits" in output else output[0])


def quiet_dropout(model: nn.Module) -> nn.Module:
    """No dropout of the model's own, wherever it is kept."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(module.__dict__.get(name), float):
                setattr(module, name, 0.0)
    return model


def _ids(length: int = LENGTH) -> Tensor:
    return torch.randint(5, 50, (BATCH, length), generator=torch.Generator().manual_seed(length))


def _tokens(length: int = LENGTH, time_first: bool = False) -> Tensor:
    shape = (length, BATCH, WIDTH) if time_first else (BATCH, length, WIDTH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(length))


def encoder(layers: int = 2, batch_first: bool = True, norm_first: bool = False, **options):
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, batch_first=batch_first, norm_first=norm_first, activation="gelu", **options
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), _tokens(time_first=not batch_first)


def decoder(layers: int = 2, batch_first: bool = True, norm_first: bool = False):
    layer = nn.TransformerDecoderLayer(
        WIDTH, HEADS, INNER, batch_first=batch_first, norm_first=norm_first, activation="gelu"
    )
    example = _tokens(TARGET, not batch_first), _tokens(LENGTH, not batch_first)
    return nn.TransformerDecoder(layer, layers), example


def bert(attn: str = "sdpa", kind: str = "Bert"):
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=60, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=32, pad_token_id=1, attn_implementation=attn,
    )  # fmt: skip
    return getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False), {"input_ids": _ids()}


def roberta(attn: str = "sdpa"):
    return bert(attn, "Roberta")


def gpt2(attn: str = "sdpa", **options):
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_inner=INNER, n_positions=32, bos_token_id=1,
        eos_token_id=2, use_cache=False, attn_implementation=attn, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids()}


def llama(attn: str = "sdpa"):
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, max_position_embeddings=32, use_cache=False, attn_implementation=attn,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": _ids()}


def vit(attn: str = "sdpa"):
    config = transformers.ViTConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS, image_size=(8, 16),
        patch_size=4, attn_implementation=attn,
    )  # fmt: skip
    pixels = torch.randn(BATCH, 3, 8, 16, generator=torch.Generator().manual_seed(0))  # 8 patches and a class token
    return transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": pixels}


def t5(attn: str = "sdpa", ff: str = "gelu"):
    config = transformers.T5Config(
        vocab_size=60, d_model=WIDTH, d_kv=SIZE, d_ff=INNER, num_layers=2, num_heads=HEADS, decoder_start_token_id=0,
        feed_forward_proj=ff, use_cache=False, attn_implementation=attn,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), {"input_ids": _ids(), "decoder_input_ids": _ids(TARGET)}


def bart(attn: str = "sdpa"):
    config = transformers.BartConfig(
        vocab_size=60, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=32,
        use_cache=False, attn_implementation=attn,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config), {"input_ids": _ids(), "decoder_input_ids": _ids(TARGET)}


HUGGING_FACE = {"bert": bert, "roberta": roberta, "gpt2": gpt2, "llama": llama, "vit": vit, "t5": t5, "bart": bart}
TORCH = {"encoder": encoder, "decoder": decoder}
MODELS = HUGGING_FACE | TORCH
DECODERS = ("t5", "bart")  # two encoder layers, then two decoder layers


def build(name: str, seed: int = 0, dropout: bool = False, **options):
    torch.manual_seed(seed)
    model, example = MODELS[name](**options)
    with torch.no_grad():  # libraries start near zero, where a mask in the wrong place would hardly show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.dim() == 1 else 0.3))
    return (model if dropout else quiet_dropout(model)), example


def expected_shape(role: str, length: int, sources: int, key_heads: int) -> tuple[int, ...]:
    if role in ("attention.query", "attention.context"):
        return BATCH, HEADS, length, SIZE
    if role in ("attention.key", "attention.value"):
        return BATCH, key_heads, sources, SIZE
    if role == "attention.probabilities":
        return BATCH, HEADS, length, sources
    return BATCH, length, INNER if role == "feedforward.hidden" else WIDTH


def assert_layers(finding, layers, key_heads=HEADS):
    """`layers`: the roles, the length and the source length of each."""
    assert [site.layer for site in finding.sites] == [n for n, layer in enumerate(layers) for _ in layer[0]]
    for number, (roles, length, sources) in enumerate(layers):
        found = [site for site in finding.sites if site.layer == number]
        assert [site.role for site in found] == list(roles)
        for site in found:
            assert site.shape == expected_shape(site.role, length, sources, key_heads), site.name
    names = [site.name for site in finding.sites]
    assert len(set(names)) == len(names)
    assert finding.unreached == ()
    assert finding.kind == "transformer"


ENCODER_LAYER = (ROLES, LENGTH, LENGTH)

DECODER_LAYER = [(ATTENTION, TARGET, TARGET), (ATTENTION + FEEDFORWARD, TARGET, LENGTH)]


class Block(nn.Module):
    """A block as users write it. `style` says how: attention fused or not, feed-forward inline, norm after the sum."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.attn_drop = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.mlp = nn.Sequential(self.fc1, nn.GELU(), self.fc2)

    def split(self, x):
        if "interleaved" in self.style:
            return self.qkv(x).unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 2, 1, 4).unbind()
        if "time first" in self.style:
            return self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 1, 3, 0, 4).unbind()
        return [part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

    def attention(self, x):
        q, k, v = self.split(x)  # (N, heads, T, D)
        if "fused" in self.style:
            context = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax(q @ k.transpose(-2, -1) * SIZE**-0.5, -1)
            context = (self.attn_drop(weights) if "module" in self.style else weights) @ v
        axes = (2, 0, 1, 3) if "time first" in self.style else (0, 2, 1, 3)
        return self.proj(context.permute(axes).flatten(2))

    def feed(self, x):
        if "inline" not in self.style:
            return self.mlp(x)
        x = self.fc2(F.gelu(self.fc1(x)))
        return F.dropout(x, 0.0, self.training) if "dropout" in self.style else x

    def forward(self, x):
        if "after" in self.style:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.feed(x))
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))
