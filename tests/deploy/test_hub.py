"""The Hub: folders with cards, and a push and a download through huggingface_hub over HTTP on this machine."""

import base64
import json
import os
import pickle
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch

import anyorder as ao

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub of one repository on this machine, as far as huggingface_hub asks; the files that it holds."""
    files: dict[str, bytes] = {}

    class Hub(BaseHTTPRequestHandler):
        def answer(self, content: bytes = b"{}", status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_POST(self):
            lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
            address = f"http://{self.headers['Host']}/me/sets"
            if "/commit/" in self.path:
                for line in map(json.loads, lines):
                    if line["key"] == "file":
                        files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                made = {"commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
                return self.answer(json.dumps(made).encode())
            if "/preupload/" in self.path:
                asked = [file["path"] for file in json.loads(b"".join(lines))["files"]]
                modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in asked]
                return self.answer(json.dumps({"files": modes}).encode())
            return self.answer(json.dumps({"url": address, "name": "me/sets", "id": "me/sets"}).encode())

        def do_GET(self):
            name = self.path.rpartition("/")[2].partition("?")[0]
            if "/resolve/" in self.path:
                return self.answer(files[name], ETag=f'"{name}"')
            listed = {"id": "me/sets", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": name} for name in files]
            return self.answer(json.dumps(tree if "/tree/" in self.path else listed).encode())

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "nobody")
    yield files
    server.shutdown()


def test_what_is_pushed_comes_back_and_only_safe_files_are_downloaded(hub, tmp_path):
    def run(code: str) -> str:  # huggingface_hub reads its settings when it is imported
        done = subprocess.run([sys.executable, "-c", "import anyorder as ao, torch\n" + code], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    push = "torch.manual_seed(0); print(ao.push_to_hub(ao.DeepSets(3, 2), 'me/sets', license='mit', private=True))"
    assert run(push).endswith(f"/me/sets/commit/{COMMIT}")
    assert sorted(hub) == ["README.md", "config.json", "model.safetensors"]
    assert b'from_pretrained("me/sets")' in hub["README.md"]
    hub["evil.pkl"] = pickle.dumps(print)
    torch.manual_seed(0)
    expected = ao.DeepSets(3, 2)(torch.ones(1, 4, 3))
    fetch = "print(ao.from_pretrained('me/sets', cache_dir='cache')(torch.ones(1, 4, 3)).tolist())"
    torch.testing.assert_close(
        torch.tensor(json.loads(run(f"import os; os.chdir({str(tmp_path)!r})\n{fetch}"))), expected
    )
    found = {name for *_, names in os.walk(tmp_path / "cache") for name in names}
    assert found >= {"config.json", "model.safetensors"}
    assert "evil.pkl" not in found


def test_a_card_has_the_figures_of_the_audit_and_names_no_set(tmp_path):
    rows = pd.DataFrame({"patient": np.repeat([f"secret-{i}" for i in range(40)], 3), "level": np.arange(120.0) % 7})
    rows["ill"] = np.repeat(np.arange(40) % 2 == 0, 3)
    model = ao.TableModel(epochs=2, yardstick=False).fit(rows, set_id="patient", target="ill")
    report = model.audit(rows, orderings=4)
    for _ in range(2):  # the second replaces the first, and its card
        ao.save_pretrained(model, tmp_path / "model", report=report, tags=["wards"])
    card = (tmp_path / "model" / "README.md").read_text()
    for words in (f"{report.order_gap:.4g}", "held out", "- wards"):
        assert words in card
    assert "secret" not in card
    values = model.held_out["metrics"]["its network"]
    assert f"{values['log_loss']:.4g} [{values['log_loss_ci'][0]:.4g}, " in card
    again = ao.from_pretrained(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict(rows), model.predict(rows))
    with pytest.raises(ao.checks.InputTypeError, match="report"):
        ao.save_pretrained(model, tmp_path / "model", report={"order_gap": 0.0})
    estimator = ao.SetRegressor(epochs=1, random_state=0).fit([[1.0, 2.0], [3.0]], [3.0, 3.0])
    ao.save_pretrained(estimator, tmp_path / "sums", report=ao.audit(estimator, [[1.0, 2.0], [3.0]]))
    again = ao.from_pretrained(tmp_path / "sums")
    assert (again.predict([[4.0, 5.0]]) == estimator.predict([[4.0, 5.0]])).all()
    assert "model.predict(sets)" in (tmp_path / "sums" / "README.md").read_text()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ao.checks.InputError, match="damaged"):
        ao.from_pretrained(tmp_path / "model")
