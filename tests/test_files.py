"""Files: written whole or not at all, read without running code."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from anyorder.checks import InputError
from anyorder.files import (
    NO_DIGEST,
    check_digest,
    locked,
    tensors_from_bytes,
    tensors_to_bytes,
    with_digest,
    write_atomically,
)


def test_tensors_and_metadata_come_back_bit_equal():
    tensors = {
        "float": torch.randn(3, 4, dtype=torch.float64),
        "half": torch.randn(2).to(torch.bfloat16),
        "int": torch.arange(5),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "strided": torch.arange(6.0).view(2, 3).T,
    }
    tensors |= {"tied": tensors["half"], "part": tensors["half"][:1]}
    metadata = {"epoch": 3, "history": [{"loss": 0.5, "gap": None}], "nested": {"text": "é\n"}}
    loaded, words = tensors_from_bytes(tensors_to_bytes(tensors, metadata))
    assert words == metadata
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_every_changed_bit_is_seen():
    whole = tensors_to_bytes({"w": torch.randn(2, 3)}, {"epoch": 1})
    for place in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(InputError, match="part"):
            tensors_from_bytes(bytes(changed), "part")
    text = with_digest(f'{{"digest": "{NO_DIGEST}", "mean": 1.5}}'.encode())
    check_digest(text, "text")
    for changed in (text.replace(b"1.5", b"1.6"), text.upper(), b"", text[:-1], text + b" "):
        with pytest.raises(InputError, match="SHA-256 of text"):
            check_digest(changed, "text")


@pytest.mark.kill
@pytest.mark.skipif(sys.platform == "win32", reason="the lock is a POSIX call")
def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    lock = tmp_path / "new" / ".lock"
    script = f"""
import time
from pathlib import Path
from anyorder.files import locked
with locked(Path("there"), Path({str(lock)!r})):
    print("held", flush=True)
    time.sleep(20)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(InputError, match=rf"out .*process {holder.pid}, which started at 20"), locked("out", lock):
            pass
        holder.kill()
    with locked("out", lock):
        assert lock.exists()
        with pytest.raises(InputError, match=f"process {os.getpid()}"), locked("out", lock):
            pass
    assert os.listdir(lock.parent) == []


class Exploit:
    def __reduce__(self):
        return os.system, ("touch /tmp/anyorder-was-fooled",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(Exploit()), "pickle"),
        (b"PK and more", "pickle"),
        (struct.pack("<Q", 2**62) + b"{}", "no whole safetensors"),
        (struct.pack("<Q", 2) + b"[]", "no whole safetensors"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "no whole safetensors"),
        (bytes(range(64)), "no whole safetensors"),
        (b"", "no whole safetensors"),
        (safetensors.torch.save({"w": torch.ones(1)}, {"anyorder": "[1, 2]"}), "no whole safetensors"),
    ],
)
def test_hostile_files_give_one_clear_error(data, message):
    with pytest.raises(InputError, match=message) as caught:
        tensors_from_bytes(data)
    assert len(str(caught.value)) < 500
    assert not os.path.exists("/tmp/anyorder-was-fooled")


def test_writing_makes_folders_and_leaves_no_litter(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    write_atomically(path, "first")
    write_atomically(path, "sécond")
    assert path.read_text(encoding="utf-8") == "sécond"
    assert os.listdir(path.parent) == ["file.txt"]
