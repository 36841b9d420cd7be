"""The recipes of docs/audit.md run: on a small model through transformers, and through HTTP on this machine."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE, re.M | re.S)
TRANSFORMERS, HTTP, OPTIONS, DOCUMENTS, SHOTS, PAIRS = BLOCKS


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(names, *blocks):
        for block in blocks:
            exec(compile(block, "docs/audit.md", "exec"), names)
        return names["report"]

    return run


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """An untrained GPT-2 of 20,000 parameters that reads letters and writes four of five words."""
    transformers = pytest.importorskip("transformers", reason="needs the extra: pip install anyorder[dev]")
    import tokenizers

    vocabulary = {chr(c): c for c in range(127)} | {"yes": 127, "no": 128, "tie": 129, "A.": 130, "B.": 131}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes = {"vocab_size": 132, "n_positions": 256, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends, initializer_range=0.5))
    model.generation_config.suppress_tokens = list(range(127))
    model.generation_config.no_repeat_ngram_size = 1
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def server():
    """A chat endpoint with a known bias: the first option, the first document, the last example, the first answer."""
    seen = []

    def reply(prompt):
        lines = prompt.splitlines()
        if "one letter" in prompt:
            return "The answer is A."
        if "Which is better" in prompt:
            return "A"
        return lines[-2].rpartition(": ")[2] if ": " in lines[0] else lines[0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, body["model"]))
            text = reply(body["messages"][-1]["content"])
            answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield {"URL": f"http://127.0.0.1:{served.server_port}", "NAME": "small"}, seen
        served.shutdown()
        thread.join()


def test_recipes_through_http_find_the_known_bias(run, server):
    names, seen = server
    report = run(names, HTTP, OPTIONS)
    assert report.calls == len(seen) == 2 * 2 + 4 + 6
    assert set(seen) == {("/v1/chat/completions", "small")}
    assert report.position_bias[0] == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert report.flip_rate == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert report.unparsed == report.noise_flip_rate == 0
    assert run(names, OPTIONS).calls == 0  # all from the cache
    report = run(names, DOCUMENTS)
    assert report.excess_flip_rate == pytest.approx((2 / 3 + 1 / 2) / 2)
    report = run(names, SHOTS)  # the label of the last example, which is "no" in the given order
    assert (report.accuracy, report.accuracy_shuffled) == (0.5, 0.5)
    assert report.flip_rate == 0.5
    assert set(report.label_bias.values()) == {0.0}
    report = run(names, PAIRS)
    assert report.flip_rate == 0.5
    assert report.position_bias == {0: 0.5, 1: -0.5}


def test_recipes_through_transformers(run, small_model):
    names = {"NAME": small_model}
    report = run(names, TRANSFORMERS, OPTIONS)
    assert report.noise_flip_rate == 0
    assert report.calls == 2 * 2 + 4 + 6
    assert report.unparsed == 0
    assert list(report.position_bias) == [0, 1, 2, 3]
    for recipe in (DOCUMENTS, SHOTS, PAIRS):
        report = run(names, recipe)
        assert report.noise_flip_rate == report.unparsed == 0
        assert report.flip_rate_ci[0] <= report.flip_rate <= report.flip_rate_ci[1]
