"""Does a judge of two answers prefer a place? A toy judge that samples; put a language model in its stead."""

import random

import torch

import anyorder as ao

source = random.Random(0)
PAIRS = [[f"{a} words", f"{b} words"] for a, b in ((12, 30), (25, 8), (9, 40), (33, 31), (18, 22), (7, 6))] * 10


def judge(answers: list[str]) -> str:
    """The longer answer, by its letter; one time in four the first whatever it is, and sometimes no answer at all."""
    if source.random() < 0.25:
        return "I prefer A."
    lengths = [int(answer.split()[0]) for answer in answers]
    return f"I prefer {'AB'[lengths.index(max(lengths))]}." if source.random() < 0.95 else "Both are fine."


report = ao.audit(
    judge,
    PAIRS,
    design="all",  # both orders
    equivariant=True,  # the answer names a place
    parse=lambda text: text[-2] if text.startswith("I prefer") else None,
    generator=torch.Generator().manual_seed(0),
)
print(report)
for place, bias in report.position_bias.items():
    print(f"{'AB'[place]} is chosen {bias:+.1%} beyond its due (95 % interval {bias.ci[0]:+.1%} to {bias.ci[1]:+.1%})")
print(f"{report.calls} calls, {report.unparsed} answers could not be read")
