"""Every reader on small generated files in the real formats; the real files where ANYORDER_DATA names them."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import os
import threading
import zipfile

import numpy as np
import pytest
import torch

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.paper.data import datasets, generated, sources

LOADERS = {  # what to call, and the sets (training, test), steps, features and classes that it gives
    "mnist": (datasets.mnist, 60000, 10000, 784, 1, 10),
    "ecg5000": (datasets.ecg5000, 500, 4500, 140, 1, 5),
    "hapt": (datasets.hapt, 7415, 2996, 128, 6, 6),
    "musk1": (lambda: datasets.bags("musk1"), 92, None, None, 166, 2),
    "elephant": (lambda: datasets.bags("elephant"), 200, None, None, 230, 2),
    "modelnet40": (datasets.modelnet40, 9843, 2468, 1024, 3, 40),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder that comes first, and an empty cache behind it."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ANYORDER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))
    return tmp_path / "data"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder whose files are served on this machine, and a source that is downloaded from there."""
    root = tmp_path / "server"
    root.mkdir()
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(root))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        for name, file in (("mnist", "mnist/"), ("ecg5000-txt", "ecg.zip")):
            change(monkeypatch, name, url=f"http://127.0.0.1:{running.server_port}/{file}")
        yield root
        running.shutdown()


def change(monkeypatch, name, **fields):
    monkeypatch.setitem(sources.SOURCES, name, dataclasses.replace(sources.SOURCES[name], **fields))


def register(monkeypatch, name, root):
    """Take the checksums of a source from the generated files that stand in for the real ones."""
    change(monkeypatch, name, files={file: sha256((root / file).read_bytes()) for file in sources.SOURCES[name].files})


def sha256(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def idx_bytes(array):
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes(), mtime=0)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- readers


MUSK = "MUSK-1,a_1,1,-2,1.\nMUSK-1,a_2,3,4,1.\nNON-1,b_1,5,6,0.\n"
SVM = "# made for a test\n0:0:-1 1:0.5 3:2\n1:1:1 2:1\n2:1:1\n"


def test_bags_as_text(tmp_path):
    bags, labels = datasets.read_musk(write(tmp_path / "clean1.data", MUSK))
    assert [bag.tolist() for bag in bags] == [[[1, -2], [3, 4]], [[5, 6]]]
    assert labels.tolist() == [1, 0]
    bags, labels = datasets.read_mil_svm(write(tmp_path / "e.svm", SVM))
    assert [bag.tolist() for bag in bags] == [[[0.5, 0, 2]], [[0, 1, 0], [0, 0, 0]]]
    assert labels.tolist() == [0, 1]


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


IDX = idx_bytes(np.zeros((3, 4)))
DAMAGED = {
    "picture.idx": (datasets.read_idx, b"PNG image"),
    "cut.idx": (datasets.read_idx, IDX[:20]),
    "short.idx": (datasets.read_idx, gzip.compress(gzip.decompress(IDX)[:-1])),
    "words.tsv": (datasets.read_ucr, "a b c"),
    "cut.tsv": (datasets.read_ucr, "1\t2.5\t3.5\t4.5\n1\t2.5\t3"),
    "pickle.npz": (lambda path: datasets.read_npz(path, ("x",)), npz_bytes(x=np.array([{"a": 1}], dtype=object))),
    "lacks.npz": (lambda path: datasets.read_npz(path, ("x", "y")), npz_bytes(x=np.arange(3))),
    "cut.data": (datasets.read_musk, MUSK[:-6]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, name):
    read, content = DAMAGED[name]
    with pytest.raises(InputError, match=name) as error:
        read(write(tmp_path / name, content))
    assert "\n" not in str(error.value)


# A square pyramid: the base as one quadrilateral, so that larger faces are cut into triangles.
PYRAMID = [(0, 0, 0), (2, 0, 0), (2, 2, 0), (0, 2, 0), (1, 1, 3)]
PYRAMID_FACES = [(0, 1, 2, 3), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)]
AREA = 4 + 4 * 10**0.5


def off_text(vertices, faces):
    body = [" ".join(map(str, v)) for v in vertices] + [" ".join(map(str, (len(f), *f))) for f in faces]
    return f"OFF\n{len(vertices)} {len(faces)} 0\n" + "\n".join(body) + "\n"


WHOLE = off_text(PYRAMID, PYRAMID_FACES)


def test_broken_meshes_are_named(tmp_path):
    for faces in ([(0, 1, 9)], []):  # of a vertex that is not there, none
        write(tmp_path / "toy/box/train/far.off", off_text(PYRAMID, faces))
        with pytest.raises(InputError, match=r"far\.off"):
            datasets.meshes(tmp_path / "toy", 5)


def test_points_are_drawn_by_area_in_the_unit_sphere(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / "toy" / "pyramid" / part / "a.off", WHOLE)
    points = datasets.meshes(tmp_path / "toy", 20000).train.elements
    assert points.mean(dim=0).abs().max() < 1e-5
    assert points.norm(dim=1).max() == pytest.approx(1, abs=1e-5)
    share, found = 4 / AREA, (points[:, 2] < points[:, 2].min() + 1e-5).double().mean()  # of the base
    assert abs(found - share) < 5 * (share * (1 - share) / len(points)) ** 0.5


def test_any_number_of_points_from_meshes(tmp_path):
    root = generated.write_meshes(tmp_path / "Shapes", each=2)
    data = datasets.meshes(root, 5000, seed=3)
    assert data.train.lengths.tolist() == [5000] * 6
    assert data.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(data.train.elements, datasets.meshes(root, 5000, seed=3).train.elements)
    assert not torch.equal(data.train.elements, datasets.meshes(root, 5000, seed=4).train.elements)
    more = datasets.meshes(root, 5000, draws=2, seed=3)
    assert (len(more.train), len(more.test), more.groups.tolist()[:4]) == (12, 6, [0, 0, 1, 1])
    assert torch.equal(more.train.select([0, 2]).elements, data.train.select([0, 1]).elements)


def recordings(root):
    """Two recordings with six hundred samples each."""
    generator = np.random.default_rng(0)
    for recording, subject in ((1, 1), (2, 2)):
        for kind in ("acc", "gyro"):
            lines = [" ".join(f"{v:.6f}" for v in row) for row in generator.normal(size=(600, 3))]
            write(root / f"{kind}_exp{recording:02d}_user{subject:02d}.txt", "\n".join(lines))
    write(root / "labels.txt", "1 1 5 1 256\n1 1 7 257 400\n1 1 1 401 560\n2 2 6 10 140\n")
    return root


def test_windows_are_cut_inside_one_activity(tmp_path):
    root = recordings(tmp_path / "RawData")
    cut = datasets.cut_recordings(root)
    assert cut["x"].shape == (3 + 1 + 1, 128, 6)  # 256 samples: 3 windows; 160: 1; 131: 1; the transition: none
    assert cut["y"].tolist() == [4, 4, 4, 0, 5]
    assert cut["subject"].tolist() == cut["recording"].tolist() == [1, 1, 1, 1, 2]
    acceleration = np.loadtxt(root / "acc_exp02_user02.txt", dtype=np.float32)
    assert np.array_equal(cut["x"][4, :, :3], acceleration[9:137])
    with pytest.raises(InputError, match="RawData"):
        datasets.cut_recordings(root, steps=500)


# --- sources


def test_a_damaged_file_is_refused_by_its_hash(folder):
    write(folder / "ecg/ecg5000.npz", "not the real one")
    for read in (datasets.ecg5000, lambda: sources.fetch("ecg5000")):
        write(folder / "ecg5000.sha256", f"{hashlib.sha256(b'x').hexdigest()}  ecg/ecg5000.npz")  # overrides nothing
        with pytest.raises(InputError, match=r"ecg5000\.npz .*expected b54304278c53"):
            read()


@pytest.mark.parametrize("name", LOADERS)
def test_absent_data_says_where_it_belongs(folder, monkeypatch, name):
    change(monkeypatch, "mnist", url="http://127.0.0.1:9/")  # nobody listens there
    with pytest.raises(InputError, match="127" if name == "mnist" else "ANYORDER_DATA"):
        LOADERS[name][0]()


def test_without_a_published_checksum_nothing_is_downloaded(folder):
    for name, source in sources.SOURCES.items():
        if not source.downloads:
            with pytest.raises(InputError, match=name):
                sources.fetch(name)
    with pytest.raises(InputError, match="mnist"):
        sources.fetch("mnits")


def test_files_are_downloaded_checked_and_land_in_the_cache(folder, server, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 20)):
        write(server / f"mnist/{part}-images-idx3-ubyte.gz", idx_bytes(generator.integers(0, 256, (count, 28, 28))))
        write(server / f"mnist/{part}-labels-idx1-ubyte.gz", idx_bytes(generator.integers(0, 10, count)))
    register(monkeypatch, "mnist", server)
    assert sources.where("mnist") is None
    data = datasets.mnist()
    assert sources.where("mnist") == sources.cache_folder() == tmp_path / "home" / "data"
    assert (len(data.train), len(data.test), data.train.common_length) == (30, 20, 784)
    assert float(data.train.elements.max()) == 1.0
    lost = sources.cache_folder() / "mnist/t10k-labels-idx1-ubyte.gz"
    lost.unlink()
    write(server / "mnist/t10k-labels-idx1-ubyte.gz", "damaged on the way")
    with pytest.raises(InputError, match="mnist"):
        sources.fetch("mnist")
    assert not lost.exists()


def zip_of(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ECG = dict.fromkeys(("ECG5000_TRAIN.txt", "ECG5000_TEST.txt", "README.md"), "  1.0  2.5  3.5\n")


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"no archive", {}),
        (zip_of(ECG), {"files": dict.fromkeys(sources.SOURCES["ecg5000-txt"].files, "sha256:0123")}),
        (zip_of({"README.md": "x"}), {}),
    ],
)
def test_a_refused_archive_leaves_nothing_behind(folder, server, monkeypatch, content, fields):
    write(server / "ecg.zip", content)
    change(monkeypatch, "ecg5000-txt", **fields)
    with pytest.raises(InputError, match=r"ecg5000-txt|ECG5000_TRAIN"):
        sources.fetch("ecg5000-txt", trust=True)
    assert list(sources.cache_folder().rglob("*")) == []


def test_a_fetch_that_is_interrupted_is_never_taken_for_the_whole(folder, server):
    write(server / "ecg.zip", zip_of(ECG))
    obstacle = sources.cache_folder() / "ECG5000/README.md/x"
    write(obstacle, "")  # a folder where a file belongs: moving stops there
    with pytest.raises(InputError, match="ecg5000-txt"):
        sources.fetch("ecg5000-txt", trust=True)
    assert sources.where("ecg5000-txt") is None
    obstacle.unlink()
    obstacle.parent.rmdir()
    root = sources.fetch("ecg5000-txt", trust=True)  # the second time it succeeds
    assert sorted(p.name for p in root.iterdir()) == ["ECG5000", "ecg5000-txt.sha256"]
    assert len(list((root / "ECG5000").iterdir())) == 3


def test_trusted_downloads_are_stored_and_checked_from_then_on(folder, server):
    write(server / "ecg.zip", zip_of({**ECG, "ECG5000_TEST.txt": "1 2 3\n1 2 3\n"}))
    with pytest.raises(InputError, match="--trust"):
        sources.fetch("ecg5000-txt")
    root = sources.fetch("ecg5000-txt", trust=True)
    assert (root / "ecg5000-txt.sha256").read_text().count("\n") == 3
    assert sources.fetch("ecg5000-txt") == root
    with pytest.raises(InputError, match="not the published data"):
        datasets.ecg5000()
    write(root / "ECG5000/ECG5000_TEST.txt", "1 2 3\n")
    with pytest.raises(InputError, match=r"ECG5000_TEST\.txt"):
        datasets.ecg5000()


def test_original_texts_stand_in_for_the_prepared_files(folder):
    generator = np.random.default_rng(0)
    counts = {"TRAIN": (292, 177, 10, 19, 2), "TEST": (2627, 1590, 86, 175, 22)}
    for part, sizes in counts.items():
        lines = [f"{k + 1}\t{v:.3f}" + "\t1.5" * 139 for k, n in enumerate(sizes) for v in generator.normal(size=n)]
        whole = write(folder / f"ECG5000/ECG5000_{part}.txt", "\n".join(lines)).read_text()
    data = datasets.ecg5000()
    assert (len(data.train), len(data.test)) == (500, 4500)
    for wrong in (whole[:-20], whole.replace("\t1.5\t1.5", "\t1.5"), whole.partition("\n")[0]):
        write(folder / "ECG5000/ECG5000_TEST.txt", wrong)
        with pytest.raises(InputError, match="ECG5000"):
            datasets.ecg5000()
    for name, place, text in (("musk1", "musk/clean1.data", MUSK), ("elephant", "mil/elephant.svm", SVM)):
        write(folder / place, text)
        with pytest.raises(InputError, match="not the published data"):
            datasets.bags(name)
    with pytest.raises(InputError, match="name"):
        datasets.bags("tiger")


def test_as_many_recordings_as_published_are_read(folder):
    labels = []
    for recording in range(1, 62):  # 61 recordings of 30 people, with one window each
        subject = (recording - 1) % 30 + 1
        for kind in ("acc", "gyro"):
            write(folder / f"HAPT/RawData/{kind}_exp{recording:02d}_user{subject:02d}.txt", "0.5 0.25 1\n" * 128)
        labels.append(f"{recording} {subject} {recording % 6 + 1} 1 128\n")
    write(folder / "HAPT/RawData/labels.txt", "".join(labels))
    windows = datasets.hapt()
    assert (len(windows.train), len(windows.test), len(windows.groups.unique())) == (43, 18, 21)
    write(folder / "HAPT/RawData/labels.txt", "".join(labels[:-1]))
    with pytest.raises(InputError, match="not the published data"):
        datasets.hapt()


def test_a_part_of_modelnet40_is_refused(folder):
    (generated.write_meshes(folder / "ModelNet40", each=1) / "box").rename(folder / "ModelNet40/airplane")
    with pytest.raises(InputError, match="not the published data"):
        datasets.modelnet40(5000)


def test_prepared_clouds_are_read(folder, monkeypatch):
    generator = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 4)):
        arrays = npz_bytes(
            points=generator.integers(-32767, 32768, (count, 1024, 3)).astype(np.int16),
            label=np.arange(count, dtype=np.uint8) % 2,
            scale=1 / 32767,
        )
        write(folder / f"modelnet40/modelnet40_1024_{part}_i16.npz", arrays)
    register(monkeypatch, "modelnet40", folder)
    whole, few = datasets.modelnet40(), datasets.modelnet40(100, draws=12, seed=1)
    assert whole.train.common_length == 1024
    assert len(few.train) == 6 * 12
    assert len(few.test) == 4
    assert few.train.targets[:24].tolist() == [0] * 12 + [1] * 12
    first = few.train.batch(list(range(10)))[0].reshape(-1, 3)  # 10 × 100 of 1024 points: all of them different
    cloud = {tuple(p) for p in whole.train.batch([0])[0][0].tolist()}
    drawn = [tuple(p) for p in first.tolist()]
    assert len(set(drawn)) == 1000
    assert set(drawn) <= cloud
    with pytest.raises(InputError, match="ModelNet40/airplane/train"):
        datasets.modelnet40(5000)


# --- perturbation


def test_how_far_a_pixel_moves():
    """Windows of 4 and then 7 move a pixel 3 and then 6 places at most: 9, reached, and never 11."""
    order = datasets.local_orderings(4000, 784, (4, 7), np.random.default_rng(0))
    assert np.array_equal(np.sort(order, axis=1), np.tile(np.arange(784), (4000, 1)))
    moved = np.abs(order - np.arange(784))
    assert moved.max() == 9
    assert datasets.local_orderings(10, 784, (1,), np.random.default_rng(0)).tolist() == [list(range(784))] * 10


def test_every_ordering_of_a_window_is_as_likely():
    order = datasets.local_orderings(24000, 4, (4,), np.random.default_rng(0))
    counts = np.unique(order, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert np.abs(counts - 1000).max() < 5 * 1000**0.5


def test_perturbed_digits():
    clean = datasets.digits()
    data = datasets.perturbed(clean, seed=1)
    before, after = (d.train.batch(range(50))[0][:, :, 0] for d in (clean, data))
    assert not torch.equal(before, after)
    assert torch.equal(before.sort(dim=1).values, after.sort(dim=1).values)
    assert torch.equal(data.train.elements, datasets.perturbed(clean, seed=1).train.elements)
    assert not torch.equal(data.train.elements, datasets.perturbed(clean, seed=2).train.elements)
    same = datasets.perturbed(dataclasses.replace(clean, test=clean.train), seed=1)
    assert not torch.equal(same.train.elements, same.test.elements)  # test sets are perturbed by a stream of their own


# --- splits


def labelled(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return SetData.of(np.arange(len(labels), dtype=np.float32)[:, None], labels)


def test_split_is_stratified_seeded_and_complete():
    data = labelled((50, 30, 2, 1))
    first, second = datasets.split(data, 0.2, seed=0)
    assert torch.bincount(second.targets, minlength=4).tolist() == [10, 6, 1, 0]
    assert sorted([*first.elements[:, 0].tolist(), *second.elements[:, 0].tolist()]) == list(range(83))
    again, other = (datasets.split(data, 0.2, seed=s)[1].elements for s in (0, 1))
    assert torch.equal(second.elements, again)
    assert not torch.equal(second.elements, other)
    with pytest.raises(InputError, match="fraction"):
        datasets.split(data, 1.0, seed=0)


def test_split_by_person_separates_people():
    data, people = labelled((40, 40)), torch.arange(80) % 8
    first, second = ({int(i) % 8 for i in part.elements} for part in datasets.split(data, 0.25, seed=0, groups=people))
    assert first.isdisjoint(second)
    assert len(second) == 2


def test_few_labels_keeps_every_class_and_drops_the_rest():
    data = labelled((100, 60, 3))
    some, rest = datasets.few_labels(data, 0.05, seed=0)
    assert torch.bincount(some.targets).tolist() == [5, 3, 1]
    assert rest.targets is None
    assert len(some) + len(rest) == 163


def test_a_scan_sorts_the_points_of_each_cloud():
    clouds = generated.clouds(20)
    for order, key in (("x", lambda points: points[:, 0]), ("radius", lambda points: points.norm(dim=1))):
        scanned = datasets.scanned(clouds, order).test
        for before, after in zip(
            *(data.elements.unflatten(0, (-1, 20)) for data in (clouds.test, scanned)), strict=True
        ):
            assert sorted(before.tolist()) == sorted(after.tolist())
            assert bool((key(after).diff() >= 0).all())
    assert torch.equal(datasets.scanned(clouds, "random").test.elements, clouds.test.elements)


def test_folds_cover_everything_once():
    data = labelled((47, 45))
    pairs = datasets.folds(data, 10, seed=0)
    assert sorted(torch.cat([test for _, test in pairs]).tolist()) == list(range(92))
    assert {len(test) for _, test in pairs} == {9, 10}
    for train, test in pairs:
        assert set(train.tolist()).isdisjoint(test.tolist())
        assert 4 <= int(data.targets[test].sum()) <= 5
    with pytest.raises(InputError, match="count"):
        datasets.folds(data, 46)


# --- the command line


def test_data_commands(folder):
    from typer.testing import CliRunner

    from anyorder.cli.app import app

    def run(*words):
        return CliRunner().invoke(app, ["data", *words])

    write(folder / "ecg/ecg5000.npz", "x" * 2000)
    listed = run("list").stdout
    for name, source in sources.SOURCES.items():
        assert name in listed
        assert source.licence in listed
    assert "11.6 MB" in listed  # MNIST
    assert str(folder) in run("where").stdout
    assert run("where", "ecg5000").stdout.strip() == str(folder / "ecg/ecg5000.npz")
    for word, said in (("hapt", "hapt"), ("ecg5000-txt", "anyorder data where ecg5000")):
        with pytest.raises(InputError, match=said):
            raise run("where", word).exception


# --- generated data, and the real files


def digest(data):
    parts = (data.train, data.test)
    content = b"".join(part.elements.numpy().tobytes() for part in parts if part is not None)
    return hashlib.sha256(content).hexdigest()[:12]


def test_generated_data_and_splits_never_change():
    """Published rows can be had again only while every draw keeps its order."""
    windows, digits = generated.windows(), datasets.digits()
    assert digest(generated.beats()) == "f8cf848ce0dd"
    assert digest(windows) == "4d158faac024"
    assert digest(generated.bags(1)) == "2a410641e283"
    assert digest(datasets.perturbed(digits)) == "22aa8d5ba5d9"

    def places(data, *options, **more):
        numbered = SetData.of(torch.arange(len(data))[:, None], data.targets)
        return [part.elements[:, 0] for part in datasets.split(numbered, *options, **more)]

    rows = [
        *places(digits.train, 0.2, seed=1),
        *places(windows.train, 0.4, seed=1, groups=windows.groups),
        *datasets.folds(digits.test, 3, seed=1)[0],
    ]
    assert sum(int((row * torch.arange(1, len(row) + 1)).sum()) for row in rows) == 518589056


@pytest.mark.skipif(not os.environ.get("ANYORDER_DATA"), reason="ANYORDER_DATA names no folder with the real files")
@pytest.mark.parametrize(("load", "train", "test", "steps", "features", "classes"), LOADERS.values(), ids=LOADERS)
def test_real_data(load, train, test, steps, features, classes):
    data = load()
    sizes = len(data.train), None if data.test is None else len(data.test)
    assert (*sizes, data.train.common_length, data.train.elements.shape[1]) == (train, test, steps, features)
    assert set(data.train.targets.tolist()) == set(range(classes))
    assert bool(torch.isfinite(data.train.elements).all())
    if data.groups is not None:
        assert set(data.groups.tolist()).isdisjoint(datasets.HAPT_TEST_SUBJECTS)
