"""How large is the first gradient of a fresh Transformer-XL under random policies?

    python benchmarks/gradients.py [--smoke] [--policies 24] [--out results/gradients.json]

The 16-layer model of the paper's language experiments, rate 0.2, 3 rows of 70 words. A policy that drops whole words
from a skip input can make the gradient larger by orders of magnitude in every layer, with an ordinary loss: the reason
why `training/clipped_adam.py` leaves out a step whose gradient is not finite.
"""

from dataclasses import replace

import torch
from torch.nn import functional as F

import autodropout as ad
from autodropout.models.transformer_xl import TransformerXL
from autodropout.recipes.language import RATE, TRANSFORMER_XL
from recording import facts, options, write

VOCABULARY, ROWS, SEGMENT = 10_000, 3, 70


def drops_words_from_a_skip(policy: ad.TransformerPolicy) -> bool:
    skips = (policy.sites[site] for site in ("attention.residual", "feedforward.residual"))
    return any(not pattern.is_none and pattern.share_c for pattern in skips)


def first_gradient(seed: int | None, layers: int) -> dict[str, object]:
    """The loss, and the norm of its gradient; under the policy drawn with that seed, or none."""
    torch.manual_seed(0)
    model = TransformerXL(VOCABULARY, replace(TRANSFORMER_XL, layers=layers))
    words = torch.randint(VOCABULARY, (ROWS, SEGMENT + 1))
    example = (words[:, :-1], model.blank_memory(ROWS))
    skips = False
    if seed is not None:
        policy = ad.space(model, example).sample(seed)
        skips = drops_words_from_a_skip(policy)
        ad.attach(model, policy, rate=RATE, example=example)
    model.train()
    hidden, _ = model(*example)
    loss = F.cross_entropy(model.logits(model.softmax_dropout(hidden)).flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    squares = [parameter.grad.double().square().sum() for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack(squares).sum().sqrt().item()
    return {"policy": seed, "drops_words_from_a_skip": skips, "loss": round(loss.item(), 4), "norm": f"{norm:.3g}"}


def main() -> None:
    parser = options(__doc__, "results/gradients.json", "two layers and two policies, nothing written")
    parser.add_argument("--policies", type=int, default=24)
    args = parser.parse_args()
    layers, policies = (2, 2) if args.smoke else (TRANSFORMER_XL.layers, args.policies)
    rows = []
    for seed in (None, *range(policies)):
        rows.append(first_gradient(seed, layers))
        print(rows[-1], flush=True)
    if not args.smoke:
        what = f"first gradient of a fresh Transformer-XL, {layers} layers, random policies at rate {RATE}"
        write(facts(what, ["torch"]) | {"rows": rows}, args.out)
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
