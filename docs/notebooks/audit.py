# %% [markdown]
# # Auditing any model, language models included
#
# `ao.audit` needs a callable and sets. It reads each set in its given order, in the same order again (the noise floor) and in other orders, and says what order adds. Here it audits
# a network, an estimator of scikit-learn, a predictor that samples, and a language model.

# %%
import numpy as np
import torch
from IPython.display import Image
from sklearn.ensemble import RandomForestClassifier

import anyorder as ao

rng = np.random.default_rng(0)
X = [rng.normal(size=(6, 2)) for _ in range(500)]
y = np.array([int(x[:, 0].max() > 1.2) for x in X])

# %% [markdown]
# ## A network and a forest, compared
#
# A random forest on the flattened table treats "feature 3" as a place, so its output moves with the order. The GRU is trained with `penalty_weight="auto"`, the default, which
# seeks a small order gap.

# %% alt="Order gap on a logarithmic axis against accuracy for three models. DeepSets lies at the left edge, the GRU with SIRE and the forest on flattened sets to the right of it."
forest = RandomForestClassifier(random_state=0).fit([x.ravel() for x in X[:300]], y[:300])
gru = ao.SetClassifier(epochs=60, random_state=0).fit(X[:300], y[:300])
deepsets = ao.SetClassifier(model="deepsets", penalty=None, penalty_weight=0.0, epochs=40, random_state=0)
models = {
    "forest": lambda elements: forest.predict_proba(elements.reshape(len(elements), -1)),
    "GRU with SIRE": gru,
    "DeepSets": deepsets.fit(X[:300], y[:300]),
}
comparison = ao.audit(
    models, np.stack(X[300:]), labels=y[300:], orderings=8, generator=torch.Generator().manual_seed(0)
)
print(comparison)
comparison.plot("comparison.png")
Image("comparison.png", width=560)

# %% [markdown]
# ## Which places matter?
#
# `by_position` is the mean change of the output if the element at a place is swapped with another.

# %% alt="Three curves of the mean change of the output against the position of the swapped element. The curve of DeepSets is at 0, those of the forest and the GRU are above it."
ax = ao.plot.curve(comparison, "by_position")
# %% [markdown]
# ## A predictor that samples
#
# It answers differently when asked the same again. The audit measures that first, and reports what order adds.

# %%
noise = np.random.default_rng(1)


def samples(elements):
    """The sign of the sum, wrong in one of ten answers; it does not look at order."""
    answer = (elements.sum((1, 2)) > 0) ^ (noise.random(len(elements)) < 0.1)
    return answer.astype(int)


generator = torch.Generator().manual_seed(0)
report = ao.audit(samples, np.stack(X), task="classification", orderings=16, generator=generator)
print(report)
print(f"flip rate {report.flip_rate:.3f}, of which noise {report.noise_flip_rate:.3f}")

# %% [markdown]
# ## A language model
#
# A causal language model of transformers answers multiple-choice questions. This one is small and untrained, so that the notebook downloads nothing. Put yours in its place: the
# function `ask` is all that the audit needs.

# %%
import tokenizers
import transformers

vocabulary = {chr(code): code for code in range(128)}
letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" "))
letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters)
torch.manual_seed(0)
sizes = {"vocab_size": 128, "n_positions": 256, "n_embd": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def ask(prompt, choices):
    """The choice that the model finds most likely as the next letter."""
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        scores = network(input_ids=inputs["input_ids"]).logits[0, -1]
    return max(choices, key=lambda letter: scores[vocabulary[letter]])


def choose(options, static):
    names = "ABCD"[: len(options)]
    lines = [f"{name}) {option}" for name, option in zip(names, options)]
    return ask("\n".join([static, *lines, "Answer: "]), names)


questions = ["Which is a fruit?", "Which is a colour?", "Which is an animal?", "Which is a city?"] * 3
pool = ["plum", "blue", "otter", "Oslo", "leek", "six", "rain", "chair", "tea", "spoon"]
options = [rng.choice(pool, 4, replace=False).tolist() for _ in questions]
report = ao.audit(choose, options, static=questions, design="all", equivariant=True)
print(report)
for place, bias in report.position_bias.items():
    print(f"place {place}: named {bias:+.0%} beyond its due")

# %% [markdown]
# `equivariant=True` says that an answer names a place. It is undone before answers are compared, so a model that always chooses the same *option* has a flip rate of 0.
#
# Through a server, with a cache and a budget of calls: [Does order matter?](../audit.md)
