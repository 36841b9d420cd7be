"""Every reader on small generated files in the real formats; the real files where ANYORDER_DATA names them."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import stat
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.paper.data import datasets, formats, sources

HAVE_DATA = bool(os.environ.get("ANYORDER_DATA"))
needs_data = pytest.mark.skipif(not HAVE_DATA, reason="set ANYORDER_DATA to a folder with the real files to run this")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder that comes first, and an empty cache behind it."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ANYORDER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))
    return tmp_path / "data"


def register(monkeypatch, name, root):
    """Take the checksums of a source from the generated files that stand in for the real ones."""
    files = tuple(
        dataclasses.replace(f, checksum="sha256:" + hashlib.sha256((root / f.path).read_bytes()).hexdigest())
        for f in sources.SOURCES[name].files
    )
    monkeypatch.setitem(sources.SOURCES, name, dataclasses.replace(sources.SOURCES[name], files=files))


def idx_bytes(array):
    code = {"uint8": 0x08, "int32": 0x0C, "float32": 0x0D}[array.dtype.name]
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, code, array.ndim]) + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- readers


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_comes_back(tmp_path, dtype, zipped):
    array = np.random.default_rng(0).integers(0, 200, (3, 4, 5)).astype(dtype)
    raw = idx_bytes(array)
    path = write(tmp_path / "x", gzip.compress(raw) if zipped else raw)
    read = formats.read_idx(path)
    assert read.dtype == dtype
    assert np.array_equal(read, array)


def test_idx_refuses_what_it_is_not(tmp_path):
    raw = idx_bytes(np.zeros((3, 4), dtype=np.uint8))
    with pytest.raises(InputError, match="is not an idx file: it begins with"):
        formats.read_idx(write(tmp_path / "a", b"PNG image"))
    with pytest.raises(InputError, match=r"promises \[3, 4\] values and holds 11"):
        formats.read_idx(write(tmp_path / "b", raw[:-1]))
    with pytest.raises(InputError, match="promises"):
        formats.read_idx(write(tmp_path / "c", raw[:6]))
    with pytest.raises(InputError, match=r"d promises \[3, 4\] values and holds 11\.75"):
        formats.read_idx(write(tmp_path / "d", idx_bytes(np.zeros((3, 4), dtype=np.int32))[:-1]))
    with pytest.raises(InputError, match=r"e promises \[\] values and holds 1"):
        formats.read_idx(write(tmp_path / "e", b"\0\0\x08\0x"))
    with pytest.raises(InputError, match=r"c\.gz is not a readable idx file"):
        formats.read_idx(write(tmp_path / "c.gz", gzip.compress(raw)[:20]))


@pytest.mark.parametrize("gap", ["\t", ",", "  "])
def test_ucr_text(tmp_path, gap):
    rows = [["2", "0.5", "-1e-3", "4"], ["-1", "7", "8", "NaN"], ["1.0", "1", "NaN", "2"]]
    path = write(tmp_path / "T.tsv", "\n".join(gap.join(row) for row in rows[:2]) + "\n\n")
    series, labels = formats.read_ucr(path)
    assert labels.tolist() == [2, -1]
    assert [s.tolist() for s in series] == [[0.5, np.float32(-1e-3), 4.0], [7.0, 8.0]]
    with pytest.raises(InputError, match="line 1: expected a whole label and finite values"):
        formats.read_ucr(write(tmp_path / "hole.tsv", gap.join(rows[2])))
    with pytest.raises(InputError, match="is not a readable UCR text file"):
        formats.read_ucr(write(tmp_path / "words.tsv", "a b c"))
    with pytest.raises(InputError, match="holds no series"):
        formats.read_ucr(write(tmp_path / "empty.tsv", "\n"))


def test_ucr_folder_of_uneven_series(tmp_path):
    write(tmp_path / "Toy/Toy_TRAIN.tsv", "3\t1\t2\t3\n7\t4\t5\tNaN\n")
    write(tmp_path / "Toy/Toy_TEST.tsv", "7\t1\t2\t3\n")
    data = datasets.ucr(tmp_path / "Toy")
    assert data.name == "toy"
    assert data.class_names == ("3", "7")
    assert data.train.lengths.tolist() == [3, 2]
    assert data.train.targets.tolist() == [0, 1]
    assert data.test.targets.tolist() == [1]
    write(tmp_path / "Toy/Toy_TEST.tsv", "5\t1\t2\t3\n")
    with pytest.raises(InputError, match="has the class 5, which the training part lacks"):
        datasets.ucr(tmp_path / "Toy")


def test_a_ucr_file_cut_off_in_a_line_is_refused(tmp_path):
    path = write(tmp_path / "T.tsv", "1\t2.5\t3.5\t4.5\n2\t1.0\t2.0\tNaN\n1\t2.5\t3")
    with pytest.raises(InputError, match=r"T\.tsv, line 3 has 2 values, the lines before it 3: .* not padded with NaN"):
        formats.read_ucr(path)


def test_npz_refuses_pickles_and_missing_arrays(tmp_path):
    np.savez(tmp_path / "bad.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"bad\.npz is not a readable npz file"):
        formats.read_npz(tmp_path / "bad.npz", ("x",))
    np.savez(tmp_path / "good.npz", x=np.arange(3))
    with pytest.raises(InputError, match="lacks the array 'y'; it holds x"):
        formats.read_npz(tmp_path / "good.npz", ("x", "y"))


# A square pyramid: the base as one quadrilateral, so that larger faces are cut into triangles.
PYRAMID = [(0, 0, 0), (2, 0, 0), (2, 2, 0), (0, 2, 0), (1, 1, 3)]
PYRAMID_FACES = [(0, 1, 2, 3), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)]
SIDE = 0.5 * 2 * 10**0.5  # area of one side


def off_text(vertices, faces, glued=False):
    head = f"OFF{'' if glued else chr(10)}{len(vertices)} {len(faces)} 0\n"
    body = [" ".join(map(str, v)) for v in vertices] + [" ".join(map(str, (len(f), *f))) for f in faces]
    return head + "\n".join(body) + "\n"


def ply_bytes(vertices, faces, kind):
    head = (
        f"ply\nformat {kind} 1.0\ncomment made for a test\nelement vertex {len(vertices)}\n"
        "property float x\nproperty float y\nproperty float z\n"
        f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    ).encode()
    if kind == "ascii":
        return head + off_text(vertices, faces).split("\n", 2)[2].encode()
    order = "<" if "little" in kind else ">"
    body = np.array(vertices, dtype=order + "f4").tobytes()
    return head + body + b"".join(bytes([len(f)]) + np.array(f, dtype=order + "i4").tobytes() for f in faces)


TRIANGLES = [(0, 1, 2), (0, 2, 3), *PYRAMID_FACES[1:]]
MESHES = {
    "a.off": off_text(PYRAMID, PYRAMID_FACES),
    "glued.off": off_text(PYRAMID, PYRAMID_FACES, glued=True),  # many files of ModelNet40 are written like this
    "a.ply": ply_bytes(PYRAMID, PYRAMID_FACES, "ascii"),
    "little.ply": ply_bytes(PYRAMID, TRIANGLES, "binary_little_endian"),
    "big.ply": ply_bytes(PYRAMID, TRIANGLES, "binary_big_endian"),
}


@pytest.mark.parametrize("name", MESHES)
def test_meshes_keep_their_surface(tmp_path, name):
    vertices, faces = formats.read_mesh(write(tmp_path / name, MESHES[name]))
    assert np.array_equal(vertices, PYRAMID)
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    area = 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1).sum()
    assert area == pytest.approx(4 + 4 * SIDE)


def test_broken_meshes_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cut\.off has no faces"):
        formats.read_mesh(write(tmp_path / "cut.off", off_text(PYRAMID, PYRAMID_FACES)[:40]))
    with pytest.raises(InputError, match=r"vertices that are not there|not a readable mesh"):
        formats.read_mesh(write(tmp_path / "far.off", off_text(PYRAMID, [(0, 1, 9)])))
    flat = np.zeros((3, 3)), np.array([[0, 1, 2]])
    with pytest.raises(InputError, match="no surface to sample"):
        formats.sample_surface(*flat, 5, np.random.default_rng(0))


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_that_is_cut_off_is_refused(tmp_path, name):
    whole = MESHES[name] if isinstance(MESHES[name], bytes) else MESHES[name].encode()
    for cut in (2, 3, 6, 8, 9, 20):  # inside the last face, before it, in the one before
        with pytest.raises(
            InputError, match=r"ends before the last of the 5 faces it promises|is damaged, or a binary PLY file"
        ):
            formats.read_mesh(write(tmp_path / name, whole[:-cut]))


def test_text_meshes_whose_faces_begin_with_something_else_are_read_whole(tmp_path):
    head = "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    head += "element face 2\nproperty uchar red\nproperty list uchar int vertex_indices\nend_header\n"
    body = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n255 3 0 1 2\n"
    assert len(formats.read_mesh(write(tmp_path / "a.ply", head + body + "9 3 0 2 3\n"))[1]) == 2
    with pytest.raises(InputError, match="ends before the last of the 2 faces it promises"):
        formats.read_mesh(write(tmp_path / "b.ply", head + body))


def test_a_binary_mesh_of_mixed_faces_is_said_not_to_be_read(tmp_path):
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 5\nproperty float x\nproperty float y\n"
    head += "property float z\nelement face 2\nproperty list uchar int vertex_indices\nend_header\n"
    body = np.arange(15, dtype="<f4").tobytes() + struct.pack("<B4i", 4, 0, 1, 2, 3) + struct.pack("<B3i", 3, 1, 4, 2)
    with pytest.raises(InputError, match="binary PLY file whose faces differ in their number of corners, which is not"):
        formats.read_mesh(write(tmp_path / "mixed.ply", head.encode() + body))


def test_a_cloud_of_one_point_is_at_the_centre():
    assert formats.unit_sphere(np.array([[3.0, 4.0, 5.0]])).tolist() == [[0.0, 0.0, 0.0]]


def test_comments_and_missing_last_newlines_in_meshes_are_fine(tmp_path):
    text = off_text(PYRAMID, PYRAMID_FACES).replace("OFF\n", "# made for a test: OFF 9 9\nOFF\n# counts\n").rstrip()
    assert len(formats.read_mesh(write(tmp_path / "a.off", text))[1]) == 6


def test_points_are_drawn_by_area(tmp_path):
    mesh = formats.read_mesh(write(tmp_path / "a.off", MESHES["a.off"]))
    points = formats.sample_surface(*mesh, 20000, np.random.default_rng(0))
    on_base = np.abs(points[:, 2]) < 1e-9
    share = 4 / (4 + 4 * SIDE)
    assert abs(on_base.mean() - share) < 5 * (share * (1 - share) / len(points)) ** 0.5
    base = points[on_base][:, :2]
    assert np.abs(base.mean(axis=0) - 1).max() < 0.05  # uniform on the square [0, 2]²: mean 1, variance 1/3
    assert np.abs(base.var(axis=0) - 1 / 3).max() < 0.03
    height = points[~on_base][:, 2]  # uniform on a triangle: the height's density falls linearly, mean 3 / 3
    assert abs(height.mean() - 1) < 0.03
    cloud = formats.unit_sphere(points)
    assert np.abs(cloud.mean(axis=0)).max() < 1e-5
    assert np.linalg.norm(cloud, axis=1).max() == pytest.approx(1, abs=1e-5)


def mesh_folder(root, shapes=2):
    boxes = {"box": (1, 1, 1), "plank": (1, 1, 6)}
    for number, (name, size) in enumerate(boxes.items()):
        for part in ("train", "test"):
            for k in range(shapes):
                vertices = [tuple(np.round(np.array(v) * size + number + k, 3)) for v in PYRAMID]
                kind = "off" if k % 2 == 0 else "ply"
                content = (
                    off_text(vertices, PYRAMID_FACES) if kind == "off" else ply_bytes(vertices, TRIANGLES, "ascii")
                )
                write(root / name / part / f"{name}_{k}.{kind}", content)
    return root


def test_any_number_of_points_from_meshes(tmp_path):
    root = mesh_folder(tmp_path / "Shapes")
    data = datasets.meshes(root, 5000, seed=3)
    assert data.class_names == ("box", "plank")
    assert data.train.lengths.tolist() == [5000] * 4
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    assert torch.equal(data.train.elements, datasets.meshes(root, 5000, seed=3).train.elements)
    assert not torch.equal(data.train.elements, datasets.meshes(root, 5000, seed=4).train.elements)
    more = datasets.meshes(root, 5000, draws=2, seed=3)
    assert len(more.train) == 8
    assert len(more.test) == 4
    assert torch.equal(more.train.select([0, 2]).elements, data.train.select([0, 1]).elements)
    with pytest.raises(InputError, match=r"must hold <class>/train/\*\.off"):
        datasets.meshes(tmp_path / "Shapes" / "box", 10)


def test_hdf5_clouds(tmp_path):
    h5py = pytest.importorskip("h5py")
    points = np.random.default_rng(0).random((3, 20, 3), dtype=np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"], file["label"] = points, np.array([[4], [0], [1]], dtype=np.uint8)
    read, labels = formats.read_hdf5_clouds(tmp_path / "a.h5")
    assert np.array_equal(read, points)
    assert labels.tolist() == [4, 0, 1]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["data"], file["label"] = points[..., :2], np.zeros(3)
    with pytest.raises(InputError, match=r"must hold data \[N, T, 3\] and one label a cloud"):
        formats.read_hdf5_clouds(tmp_path / "b.h5")
    with pytest.raises(InputError, match="is not a readable HDF5 file"):
        formats.read_hdf5_clouds(write(tmp_path / "c.h5", "no"))


def test_bags_as_text(tmp_path):
    musk = "MUSK-1,a_1,1,-2,1.\nMUSK-1,a_2,3,4,1.\nNON-1,b_1,5,6,0.\n"
    bags, labels = formats.read_musk(write(tmp_path / "clean1.data", musk))
    assert [bag.tolist() for bag in bags] == [[[1, -2], [3, 4]], [[5, 6]]]
    assert labels.tolist() == [1, 0]
    svm = "# made for a test\n0:0:-1 1:0.5 3:2\n1:1:1 2:1\n2:1:1\n"
    bags, labels = formats.read_mil_svm(write(tmp_path / "e.svm", svm))
    assert [bag.tolist() for bag in bags] == [[[0.5, 0, 2]], [[0, 1, 0], [0, 0, 0]]]
    assert labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="feature numbers begin at 1; got 0"):
        formats.read_mil_svm(write(tmp_path / "zero.svm", "0:0:1 0:1 2:1"))
    with pytest.raises(InputError, match="is not a readable sparse bag file"):
        formats.read_mil_svm(write(tmp_path / "odd.svm", "0:1 1:1"))
    with pytest.raises(InputError, match="bag 1 holds NaN or an infinite value"):
        formats.read_mil_svm(write(tmp_path / "nan.svm", "0:0:1 1:nan\n"))
    with pytest.raises(InputError, match="bag 1 holds NaN or an infinite value"):
        formats.read_musk(write(tmp_path / "nan.data", musk.replace("-2", "nan")))
    with pytest.raises(InputError, match=r"cut\.data is damaged: its lines have different numbers of values"):
        formats.read_musk(write(tmp_path / "cut.data", musk[:-6]))
    with pytest.raises(
        InputError, match=r"cut\.svm is cut off: its last line has no end; .* add a newline if it is whole"
    ):
        formats.read_mil_svm(write(tmp_path / "cut.svm", "0:0:-1 1:0.5 3:2\n1:1:1 1:0.5 2:"[:-3]))
    for reader in (formats.read_musk, formats.read_mil_svm):
        with pytest.raises(InputError, match="holds no bags"):
            reader(write(tmp_path / "none", ""))


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
    root = recordings(tmp_path)
    cut = formats.cut_recordings(root)
    assert cut["x"].shape == (3 + 1 + 1, 128, 6)  # 256 samples: 3 windows; 160: 1; 131: 1; the transition: none
    assert cut["y"].tolist() == [4, 4, 4, 0, 5]
    assert cut["subject"].tolist() == cut["recording"].tolist() == [1, 1, 1, 1, 2]
    acceleration = np.loadtxt(root / "acc_exp02_user02.txt", dtype=np.float32)
    assert np.array_equal(cut["x"][4, :, :3], acceleration[9:137])
    with pytest.raises(InputError, match="holds no stretch of 500 samples"):
        formats.cut_recordings(root, steps=500)
    for kind in ("acc", "gyro"):
        path = root / f"{kind}_exp01_user01.txt"
        write(path, "\n".join(path.read_text().splitlines()[:300]))
    with pytest.raises(
        InputError, match=r"recording 1 is cut off: it has 300 samples, and labels\.txt names sample 560"
    ):
        formats.cut_recordings(root)


def all_recordings(root):
    """61 recordings of 30 people, as many as the published data has, with one window each."""
    labels = []
    for recording in range(1, 62):
        subject = (recording - 1) % 30 + 1
        for kind in ("acc", "gyro"):
            write(root / f"{kind}_exp{recording:02d}_user{subject:02d}.txt", "0.5 0.25 1\n" * 128)
        labels.append(f"{recording} {subject} {recording % 6 + 1} 1 128\n")
    write(root / "labels.txt", "".join(labels))
    return labels


# --- archives


def hostile_zip(name, mode=0o100644):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("fine.txt", "fine")
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def hostile_tar(name, kind=tarfile.REGTYPE):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("fine.txt"), io.BytesIO(b""))
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
        archive.addfile(info, io.BytesIO(b""))
    return buffer.getvalue()


@pytest.mark.parametrize("make", [hostile_zip, hostile_tar])
@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/anyorder-out.txt", "..\\out.txt", "x/.."])
def test_archives_stay_inside_their_folder(tmp_path, make, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(InputError, match="wants to write outside its folder"):
        formats.unpack(write(tmp_path / "archive", make(name)), inside)
    assert list(inside.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "inside"]


@pytest.mark.parametrize(
    "content",
    [
        hostile_zip("link", stat.S_IFLNK | 0o777),
        hostile_tar("link", tarfile.SYMTYPE),
        hostile_tar("link", tarfile.LNKTYPE),
        hostile_tar("link", tarfile.CHRTYPE),
    ],
)
def test_archives_hold_no_links_or_devices(tmp_path, content):
    with pytest.raises(InputError, match="holds a link or device: 'link'"):
        formats.unpack(write(tmp_path / "archive", content), tmp_path / "inside")
    assert not (tmp_path / "inside").exists()


def test_archives_unpack_what_is_fine(tmp_path):
    for name, content in (("z", hostile_zip("deep/er/b.txt")), ("t", hostile_tar("deep/er/b.txt"))):
        files = formats.unpack(write(tmp_path / name, content), tmp_path / f"in-{name}")
        assert [f.relative_to(tmp_path / f"in-{name}").as_posix() for f in files] == ["fine.txt", "deep/er/b.txt"]
        assert all(f.is_file() for f in files)
    with pytest.raises(InputError, match="is not a readable zip or tar file"):
        formats.unpack(write(tmp_path / "no", "no archive"), tmp_path)


# --- sources


def test_a_form_nobody_can_get_says_so_and_has_others_beside_it():
    repacked = [source for source in sources.SOURCES.values() if source.files[0].path.endswith(".npz")]
    assert {source.name for source in repacked} == {"ecg5000", "hapt", "bags", "modelnet40"}
    for source in repacked:
        assert "published nowhere: any other form of the same data is read instead" in source.what
        others = [other for other in sources.SOURCES.values() if other.dataset == source.dataset and other != source]
        assert others


def test_a_damaged_file_is_refused_by_its_hash(folder):
    write(folder / "ecg/ecg5000.npz", "not the real one")
    for read in (datasets.ecg5000, lambda: sources.fetch("ecg5000")):
        write(folder / "ecg5000.sha256", f"{hashlib.sha256(b'x').hexdigest()}  ecg/ecg5000.npz")  # overrides nothing
        with pytest.raises(InputError, match=r"ecg5000.npz is damaged: its sha256 is .*, expected b54304278c53"):
            read()


@pytest.mark.parametrize("name", datasets.LOADERS)
def test_absent_data_says_where_it_belongs(folder, monkeypatch, name):
    monkeypatch.setattr("pooch.retrieve", lambda url, *_, **__: (_ for _ in ()).throw(OSError(f"no network: {url}")))
    with pytest.raises(InputError, match=r"set ANYORDER_DATA to a folder"):
        datasets.LOADERS[name]()


def test_without_a_published_checksum_nothing_is_downloaded(folder, monkeypatch):
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("downloaded without a checksum"))
    for name, source in sources.SOURCES.items():
        if not source.downloads:
            with pytest.raises(InputError, match=f"{name} cannot be downloaded with a published checksum"):
                sources.fetch(name)
    with pytest.raises(InputError, match=r"source must be one of .*; did you mean 'mnist'"):
        sources.fetch("mnits")


def mnist_files():
    generator = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 20)):
        yield f"{part}-images-idx3-ubyte.gz", idx_bytes(generator.integers(0, 256, (count, 28, 28)).astype(np.uint8))
        yield f"{part}-labels-idx1-ubyte.gz", idx_bytes(generator.integers(0, 10, count).astype(np.uint8))


def test_downloads_are_checked_and_land_in_the_cache(folder, tmp_path, monkeypatch):
    server = tmp_path / "server"
    for name, content in mnist_files():
        write(server / "mnist" / name, gzip.compress(content, mtime=0))
    register(monkeypatch, "mnist", server)

    def retrieve(url, known_hash, fname, path):
        content = (server / "mnist" / fname).read_bytes()
        algorithm, expected = known_hash.split(":")
        if hashlib.new(algorithm, content).hexdigest() != expected:
            raise ValueError("hash of downloaded file does not match")
        return str(write(path / fname, content))

    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert sources.where("mnist") is None
    data = datasets.mnist()
    assert sources.where("mnist") == sources.cache_folder() == tmp_path / "home" / "data"
    assert (len(data.train), len(data.test), data.train.common_length) == (30, 20, 784)
    assert float(data.train.elements.max()) == 1.0
    write(server / "mnist/train-labels-idx1-ubyte.gz", "damaged on the way")
    write(sources.cache_folder() / "mnist/train-labels-idx1-ubyte.gz", "").unlink()
    with pytest.raises(InputError, match="download of mnist is damaged and was refused: hash of"):
        sources.fetch("mnist")


def test_pooch_itself_downloads_and_refuses_what_is_damaged(folder, tmp_path, monkeypatch):
    """The real downloader, from a server on this machine."""
    import functools
    import http.server
    import threading

    for name, content in mnist_files():
        write(tmp_path / "server/mnist" / name, gzip.compress(content, mtime=0))
    register(monkeypatch, "mnist", tmp_path / "server")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(tmp_path / "server/mnist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = dataclasses.replace(sources.SOURCES["mnist"], url=f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setitem(sources.SOURCES, "mnist", source)
        assert len(datasets.mnist().train) == 30
        lost = sources.cache_folder() / "mnist/t10k-labels-idx1-ubyte.gz"
        lost.unlink()
        write(tmp_path / "server/mnist/t10k-labels-idx1-ubyte.gz", "damaged on the way")
        with pytest.raises(InputError, match="download of mnist is damaged and was refused"):
            sources.fetch("mnist")
        assert not lost.exists()
        server.shutdown()


def test_archives_are_downloaded_unpacked_and_checked(folder, tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    root = tmp_path / "server"
    for number, file in enumerate(sources.SOURCES["modelnet40-hdf5"].files):
        write(root / file.path, "bed\nchair\n")
        if file.path.endswith(".h5"):
            with h5py.File(root / file.path, "w") as out:
                out["data"] = np.random.default_rng(number).random((4, 2048, 3), dtype=np.float32)
                out["label"] = np.array([[0], [1], [1], [0]])
    register(monkeypatch, "modelnet40-hdf5", root)

    def retrieve(url, known_hash, fname, path):
        target = path / fname
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w") as archive:
            for file in sources.SOURCES["modelnet40-hdf5"].files:
                archive.write(root / file.path, file.path)
        return str(target)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    data = datasets.modelnet40(2000)
    assert data.source == "modelnet40-hdf5"
    assert (len(data.train), len(data.test), data.train.common_length) == (20, 8, 2000)
    assert data.class_names == ("bed", "chair")


def serve_archive(monkeypatch, content):
    """Stand in for a download of ``content``, whatever the name."""

    def retrieve(url, known_hash, fname, path):
        return str(write(path / fname, content))

    monkeypatch.setattr("pooch.retrieve", retrieve)


def ecg_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("ECG5000_TRAIN.txt", "ECG5000_TEST.txt", "README.md"):
            archive.writestr(name, "  1.0  2.5  3.5\n")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [hostile_zip("../out.txt"), hostile_tar("link", tarfile.SYMTYPE), b"no archive"])
def test_a_refused_archive_leaves_nothing_behind(folder, tmp_path, monkeypatch, content):
    serve_archive(monkeypatch, content)
    with pytest.raises(InputError, match="download of ecg5000-txt is damaged and was refused: "):
        sources.fetch("ecg5000-txt", trust=True)
    assert list(sources.cache_folder().rglob("*")) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "home"]


def test_an_archive_with_another_hash_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    """The real downloader, from a file on this machine."""
    import http.server
    import threading

    archive = write(tmp_path / "server/a.zip", ecg_zip())

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *words):
            super().__init__(*words, directory=str(archive.parent))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = dataclasses.replace(
            sources.SOURCES["ecg5000-txt"], url=f"http://127.0.0.1:{server.server_port}/a.zip", checksum="sha256:0123"
        )
        monkeypatch.setitem(sources.SOURCES, "ecg5000-txt", source)
        with pytest.raises(InputError, match="download of ecg5000-txt is damaged and was refused"):
            sources.fetch("ecg5000-txt")
        assert list(sources.cache_folder().rglob("*")) == []
        good = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
        monkeypatch.setitem(sources.SOURCES, "ecg5000-txt", dataclasses.replace(source, checksum=good))
        assert sources.fetch("ecg5000-txt") == sources.where("ecg5000-txt")
        server.shutdown()


def test_a_file_with_another_hash_inside_an_archive_leaves_nothing_behind(folder, monkeypatch):
    source = sources.SOURCES["ecg5000-txt"]
    files = tuple(dataclasses.replace(file, checksum="sha256:0123") for file in source.files)
    monkeypatch.setitem(sources.SOURCES, "ecg5000-txt", dataclasses.replace(source, files=files))
    serve_archive(monkeypatch, ecg_zip())
    with pytest.raises(InputError, match=r"ECG5000_TRAIN\.txt is damaged: its sha256 is .*, expected 0123"):
        sources.fetch("ecg5000-txt", trust=True)
    assert list(sources.cache_folder().rglob("*")) == []


@pytest.mark.parametrize("step", range(7))  # three files unpacked, their hashes written down, three files moved
def test_a_fetch_that_is_interrupted_is_never_taken_for_the_whole(folder, monkeypatch, step):
    serve_archive(monkeypatch, ecg_zip())
    replace, calls = os.replace, iter(range(7))

    def interrupted(source, target):
        if next(calls) == step:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sources.fetch("ecg5000-txt", trust=True)
    assert sources.where("ecg5000-txt") is None
    root = sources.fetch("ecg5000-txt", trust=True)  # the second time it succeeds
    assert sorted(p.name for p in root.iterdir()) == ["ECG5000", "ecg5000-txt.sha256"]
    assert len(list((root / "ECG5000").iterdir())) == 3


def test_trusted_downloads_are_written_down_and_checked_from_then_on(folder, monkeypatch):
    def retrieve(url, known_hash, fname, path):
        assert known_hash is None
        path.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path / fname, "w") as archive:
            archive.writestr("Toy_README.md", "what it is")
            for part in ("TRAIN", "TEST"):
                archive.writestr(f"ECG5000_{part}.txt", "  1.0  2.5  3.5\n  2.0  1.0  0.5\n")
        return str(path / fname)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(InputError, match=r"or trust it as it is: anyorder data fetch ecg5000-txt --trust"):
        sources.fetch("ecg5000-txt")
    root = sources.fetch("ecg5000-txt", trust=True)
    assert (root / "ecg5000-txt.sha256").read_text().count("\n") == 3
    assert sources.fetch("ecg5000-txt") == root
    assert datasets.ucr(root / "ECG5000").train.lengths.tolist() == [2, 2]
    with pytest.raises(InputError, match=r"not the published data: expected .* beats of each class; found \(1, 1\)"):
        datasets.ecg5000()
    write(root / "ECG5000/ECG5000_TEST.txt", "1 2 3\n")
    with pytest.raises(InputError, match=r"ECG5000_TEST\.txt is damaged: its sha256 is"):
        datasets.ecg5000()


def test_original_texts_stand_in_for_the_prepared_files(folder):
    generator = np.random.default_rng(0)
    counts = {"TRAIN": (292, 177, 10, 19, 2), "TEST": (2627, 1590, 86, 175, 22)}
    for part, sizes in counts.items():
        lines = [f"{k + 1}\t{v:.3f}" + "\t1.5" * 139 for k, n in enumerate(sizes) for v in generator.normal(size=n)]
        whole = write(folder / f"ECG5000/ECG5000_{part}.tsv", "\n".join(lines)).read_text()
    data = datasets.ecg5000()
    assert (data.source.endswith("ECG5000"), len(data.train), len(data.test)) == (True, 500, 4500)
    write(folder / "ECG5000/ECG5000_TEST.tsv", whole[:-20])
    with pytest.raises(InputError, match=r"ECG5000_TEST\.tsv, line 4500 has 135 values"):
        datasets.ecg5000()
    write(folder / "ECG5000/ECG5000_TEST.tsv", whole.replace("\t1.5\t1.5", "\t1.5"))
    with pytest.raises(InputError, match=r"is not the published data: expected \(140,\) steps in every beat; found"):
        datasets.ecg5000()
    write(folder / "ECG5000/ECG5000_TEST.tsv", "1\t2.0\n")
    with pytest.raises(InputError, match=r"is not the published data: expected .* test beats of each class"):
        datasets.ecg5000()
    write(folder / "musk/clean1.data", "MUSK-1,a_1,1,-2,1.\n")
    with pytest.raises(InputError, match=r"expected \(92, 476, 166\) bags, instances and features; found \(1, 1, 2\)"):
        datasets.bags("musk1")
    labels = all_recordings(folder / "HAPT/RawData")
    windows = datasets.hapt()
    assert (len(windows.train), len(windows.test), len(windows.groups.unique())) == (43, 18, 21)
    write(folder / "HAPT/RawData/labels.txt", "".join(labels[:-1]))
    with pytest.raises(InputError, match=r"expected \(61, 30\) recordings and subjects; found \(60, 30\)"):
        datasets.hapt()
    with pytest.raises(InputError, match="name must be one of 'musk1', 'elephant'"):
        datasets.bags("tiger")


def test_a_part_of_modelnet40_is_refused(folder):
    mesh_folder(folder / "ModelNet40")
    mesh_folder(folder / "Airplane")
    (folder / "Airplane/box").rename(folder / "ModelNet40/airplane")
    with pytest.raises(InputError, match=r"expected \(40, 9843, 2468\) classes, training .*; found \(3, 6, 6\)"):
        datasets.modelnet40(5000)


def test_prepared_files_are_read(folder, monkeypatch):
    generator = np.random.default_rng(0)
    (folder / "modelnet40").mkdir()
    for part, count in (("train", 6), ("test", 4)):
        np.savez(
            folder / f"modelnet40/modelnet40_1024_{part}_i16.npz",
            points=generator.integers(-32767, 32768, (count, 1024, 3)).astype(np.int16),
            label=np.arange(count, dtype=np.uint8) % 2,
            scale=1 / 32767,
            class_names=np.array(["bed", "chair"]),
        )
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
    monkeypatch.setattr("anyorder.paper.data.sources.fetch", lambda name: pytest.fail("nothing to fetch"))
    with pytest.raises(InputError, match=r"modelnet40 is not in .*ModelNet40/airplane/train"):
        datasets.modelnet40(5000)


# --- perturbation


def test_how_far_a_pixel_moves():
    """Windows of 4 and then 7 move a pixel 3 and then 6 places at most: 9, reached, and never 11."""
    order = datasets.local_orderings(4000, 784, (4, 7), np.random.default_rng(0))
    assert np.array_equal(np.sort(order, axis=1), np.tile(np.arange(784), (4000, 1)))
    moved = np.abs(order - np.arange(784))
    assert moved.max() == 9
    assert datasets.local_orderings(10, 784, (1,), np.random.default_rng(0)).tolist() == [list(range(784))] * 10
    wide = np.abs(datasets.local_orderings(4000, 60, (5, 6, 4), np.random.default_rng(0)) - np.arange(60))
    assert wide.max() <= 4 + 5 + 3


def test_every_ordering_of_a_window_is_as_likely():
    order = datasets.local_orderings(24000, 4, (4,), np.random.default_rng(0))
    counts = np.unique(order, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert np.abs(counts - 1000).max() < 5 * 1000**0.5


def test_perturbed_digits():
    clean = datasets.digits()
    data = datasets.perturbed(clean, seed=1)
    assert data.name == "digits-perturbed-4-7"
    before, after = (d.train.batch(range(50))[0][:, :, 0] for d in (clean, data))
    assert not torch.equal(before, after)
    assert torch.equal(before.sort(dim=1).values, after.sort(dim=1).values)
    assert torch.equal(data.train.elements, datasets.perturbed(clean, seed=1).train.elements)
    assert not torch.equal(data.train.elements, datasets.perturbed(clean, seed=2).train.elements)
    same = datasets.perturbed(dataclasses.replace(clean, test=clean.train), seed=1)
    assert not torch.equal(same.train.elements, same.test.elements)  # test sets are perturbed by a stream of their own
    with pytest.raises(InputError, match="windows must name at least one"):
        datasets.perturbed(clean, ())
    with pytest.raises(InputError, match="window must be at least 1; got 0"):
        datasets.perturbed(clean, (0,))
    uneven = dataclasses.replace(clean, train=SetData.of([[1.0], [1.0, 2.0]], [0, 1]))
    with pytest.raises(InputError, match="only sets of one common size"):
        datasets.perturbed(uneven)


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
    with pytest.raises(InputError, match="fraction must be below 1"):
        datasets.split(data, 1.0, seed=0)
    with pytest.raises(InputError, match="needs one class label a set"):
        datasets.split(SetData.of([[1.0], [2.0]]), 0.5, seed=0)


def test_split_by_person_separates_people():
    data, people = labelled((40, 40)), torch.arange(80) % 8
    first, second = datasets.split_index(data, 0.25, seed=0, groups=people)
    assert set(people[first].tolist()).isdisjoint(people[second].tolist())
    assert len(set(people[second].tolist())) == 2
    with pytest.raises(InputError, match="at least two groups; got 1"):
        datasets.split(data, 0.5, seed=0, groups=torch.zeros(80, dtype=torch.int64))


def test_few_labels_keeps_every_class_and_drops_the_rest():
    data = labelled((100, 60, 3))
    some, rest = datasets.few_labels(data, 0.05, seed=0)
    assert torch.bincount(some.targets).tolist() == [5, 3, 1]
    assert rest.targets is None
    assert len(some) + len(rest) == 163


def test_folds_cover_everything_once():
    data = labelled((47, 45))
    pairs = datasets.folds(data, 10, seed=0)
    assert sorted(torch.cat([test for _, test in pairs]).tolist()) == list(range(92))
    assert {len(test) for _, test in pairs} == {9, 10}
    for train, test in pairs:
        assert set(train.tolist()).isdisjoint(test.tolist())
        assert 4 <= int(data.targets[test].sum()) <= 5
    with pytest.raises(InputError, match="count must be at most 45"):
        datasets.folds(data, 46)


def test_standardized_by_the_training_part_alone():
    train = SetData.of(torch.tensor([[[1.0, 5.0], [3.0, 5.0]]]), [0])
    test = SetData.of(torch.tensor([[[2.0, 6.0]]]), [0])
    train_out, test_out = datasets.standardized(train, test)
    assert torch.allclose(train_out.elements, torch.tensor([[-(0.5**0.5), 0.0], [0.5**0.5, 0.0]]))
    assert test_out.elements.tolist() == [[0.0, 1.0]]  # a constant feature is shifted only
    wide, _ = datasets.standardized(train, test, spread=5.0)
    assert torch.allclose(wide.elements, 5 * train_out.elements)


# --- the command line


def run_cli(*words):
    from typer.testing import CliRunner

    from anyorder.cli import app

    return CliRunner().invoke(app, ["data", *words])


def test_data_commands(folder):
    write(folder / "ecg/ecg5000.npz", "x" * 2000)
    listed = run_cli("list")
    assert listed.exit_code == 0
    for name, source in sources.SOURCES.items():
        assert name in listed.stdout
        assert source.licence in listed.stdout
    assert "2.0 kB" in listed.stdout
    assert "not here, can be fetched, 11.6 MB" in listed.stdout  # MNIST, by its published sizes
    assert str(folder) in run_cli("where").stdout
    assert run_cli("where", "ecg5000").stdout.strip() == str(folder / "ecg/ecg5000.npz")
    with pytest.raises(InputError, match="hapt is in none of the folders searched"):
        raise run_cli("where", "hapt").exception
    with pytest.raises(InputError, match="is damaged"):
        raise run_cli("fetch", "ecg5000").exception
    with pytest.raises(InputError, match=r"the same data is here as ecg5000 \(anyorder data where ecg5000\)"):
        raise run_cli("where", "ecg5000-ucr").exception


# --- the real files


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "test", "steps", "features", "classes"),
    [
        ("mnist", 60000, 10000, 784, 1, 10),
        ("ecg5000", 500, 4500, 140, 1, 5),
        ("hapt", 7415, 2996, 128, 6, 6),
        ("musk1", 92, None, None, 166, 2),
        ("elephant", 200, None, None, 230, 2),
        ("modelnet40", 9843, 2468, 1024, 3, 40),
    ],
)
def test_real_data(name, train, test, steps, features, classes):
    data = datasets.LOADERS[name]()
    assert len(data.train) == train
    assert (None if data.test is None else len(data.test)) == test
    assert data.train.common_length == steps
    assert data.train.elements.shape[1] == features
    assert len(data.class_names) == classes
    assert set(data.train.targets.tolist()) == set(range(classes))
    assert bool(torch.isfinite(data.train.elements).all())
    if data.groups is not None:
        assert set(data.groups.tolist()).isdisjoint(datasets.HAPT_TEST_SUBJECTS)
