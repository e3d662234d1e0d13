import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from gce.errors import Doubt, InputError
from gce.files import unchecked
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Episode, Writer, check_file


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(3, [(0, 1), (1, 2)], undirected=True)
    episodes = [Episode(graph, rng.random((6, 3, 2)), rng.random((5, 3, 1))) for _ in range(4)]
    Dataset.from_episodes(episodes, [0, 0, 1, 1], {"dt": 0.1}).save(tmp_path / "x.h5")
    return tmp_path / "x.h5"


def test_a_good_file_has_no_problems(file):
    assert check_file(file) == []


def edit(file, name, change):
    with h5py.File(file, "r+") as f:
        values = f[name][:]
        change(values)
        f[name][...] = values


def test_a_changed_number_breaks_its_checksum(file):
    edit(file, "episodes/observations", lambda v: v.__setitem__((7, 1), 0.5))
    assert any("checksum of episodes/observations" in p for p in check_file(file))
    with Dataset.open(file) as data, pytest.raises(InputError, match="x.h5: the checksum of episodes/observations"):
        data[3]
    with unchecked(), Dataset.open(file) as data:
        assert data[0].length == 5


def test_changed_metadata_break_their_checksum(file):
    with h5py.File(file, "r+") as f:
        f.attrs["metadata"] = '{"dt": 0.2}'
    with pytest.raises(InputError, match="checksum of its metadata"):
        Dataset.open(file)
    with unchecked(), Dataset.open(file) as data:
        assert data.metadata == {"dt": 0.2}


def outside(file):
    """Another file's numbers, as an external link, external storage or a virtual data set would bring them in."""
    with h5py.File(file.with_name("other.h5"), "w") as f:
        f["x"] = np.zeros((72, 2))
    return file.with_name("other.h5")


LINKS = {
    "soft": lambda f, other: f.__setitem__("episodes/observations", h5py.SoftLink("/episodes/actions")),
    "external": lambda f, other: f.__setitem__("episodes/observations", h5py.ExternalLink(other, "x")),
    "of a group": lambda f, other: (f.move("groups", "kept"), f.__setitem__("groups", h5py.SoftLink("/kept"))),
    "storage": lambda f, other: f.create_dataset(
        "episodes/observations", (72, 2), "f8", external=[(str(other), 2048, h5py.h5f.UNLIMITED)]
    ),
    "virtual": lambda f, other: f.create_virtual_dataset(
        "episodes/observations", layout(h5py.VirtualSource(other, "x", (72, 2)))
    ),
}


def layout(source):
    found = h5py.VirtualLayout((72, 2), "f8")
    found[:] = source
    return found


@pytest.mark.parametrize("kind", LINKS)
def test_a_file_that_reads_another_is_refused(file, kind):
    other = outside(file)
    with h5py.File(file, "r+") as f:
        if kind != "of a group":
            del f["episodes/observations"]
        LINKS[kind](f, other)
    for read in (Dataset.open, lambda path: check_file(path)[0]):
        try:
            told = read(file)
        except InputError as error:
            told = str(error)
        assert "a data set file holds its arrays itself" in told


def swollen(f, rows=10**9):
    del f["episodes/observations"]
    f.create_dataset("episodes/observations", (rows, 2), "f8", chunks=(1000, 2), compression="gzip")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (swollen, "bytes of the array episodes/observations.*GCE_CAPS=10"),
        (lambda f: f["episodes/observations"].attrs.__setitem__("crc32", "12"), "is not a whole number"),
        (lambda f: f.attrs.__setitem__("metadata", "[" * 9999), "nested"),
        (lambda f: f.attrs.__setitem__("metadata", '{"a": ' + "9" * 5000 + "}"), "digits|whole number"),
        (lambda f: f.attrs.__setitem__("format", np.zeros(3)), "expected 'gce-trajectories'"),
        (lambda f: f.attrs.__setitem__("metadata", '{"shard": "x"}'), "says shard 'x'"),
    ],
)
def test_what_a_file_says_is_checked_before_it_is_used(file, change, told):
    with h5py.File(file, "r+") as f:
        del f.attrs["metadata_crc32"]
        change(f)
    with pytest.raises(InputError, match=told), Dataset.open(file) as data:
        data[0]


def test_an_array_of_another_type_is_told(file):
    for name, values, told in (
        ("episodes/observations", np.zeros((72, 2), int), "floating-point numbers"),
        ("episodes/observation_pointer", np.zeros(5), "whole numbers"),
        ("groups/node_type", np.array([b"a"] * 6), "whole numbers"),
        ("groups/parameters", np.zeros(2), "text"),
    ):
        with h5py.File(file, "r+") as f:
            f.move(name, "kept")
            f[name] = values
        with pytest.raises(InputError, match=f"{name} holds .* values, expected {told}"):
            Dataset.open(file)
        with h5py.File(file, "r+") as f:
            del f[name]
            f.move("kept", name)


def test_nan_is_told_by_episode_step_and_node(file):
    edit(file, "episodes/observations", lambda v: v.__setitem__((18 + 2 * 3 + 1, 0), np.nan))
    (problem,) = check_file(file)
    assert "nan at episode 1, step 2, node 1, coordinate 0" in problem


def test_an_edge_to_nowhere_is_told(file):
    edit(file, "groups/edges", lambda v: v.__setitem__((0, 0), 12))
    assert any("joins 12 to 0, but group 0 has nodes 0 to 2" in p for p in check_file(file))
    with Dataset.open(file) as data, pytest.raises(InputError, match="checksum of groups/edges does not fit"):
        data[0]
    with unchecked(), Dataset.open(file) as data, pytest.raises(InputError, match="node 12 but there are 3 nodes"):
        data[0]


def test_a_missing_array_is_told(file):
    with h5py.File(file, "r+") as f:
        del f["episodes/actions"]
    assert check_file(file) == [f"{file}: the array episodes/actions is missing"]
    with pytest.raises(InputError, match="episodes/actions is missing"):
        Dataset.open(file)


def test_actions_of_the_wrong_length_are_told(file):
    with h5py.File(file, "r+") as f:
        f["episodes/action_pointer"][...] = [0, 15, 30, 42, 60]
    assert any("episode 2 of 3 nodes has 18 rows of observations and 12 of actions" in p for p in check_file(file))


def test_a_truncated_file_is_told(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    (problem,) = check_file(file)
    assert "truncated or damaged" in problem


@pytest.mark.parametrize("content", [b"", b"a,b,c\n1,2,3\n"])
def test_a_file_that_is_not_hdf5_is_told(tmp_path, content):
    (tmp_path / "x.h5").write_bytes(content)
    (problem,) = check_file(tmp_path / "x.h5")
    assert "is not an HDF5 file" in problem


def test_a_foreign_hdf5_file_is_told(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["data"] = np.zeros(3)
    (problem,) = check_file(tmp_path / "x.h5")
    assert "expected 'gce-trajectories'" in problem


def test_another_version_is_told(file):
    with h5py.File(file, "r+") as f:
        f.attrs["format_version"] = 99
    with pytest.raises(InputError, match="format version is 99, this program reads version 1"):
        Dataset.open(file)


def test_a_file_written_by_the_documented_layout_alone_is_read(tmp_path):
    """As another program would write it: plain h5py, no checksums."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.attrs["format"], f.attrs["format_version"], f.attrs["metadata"] = "gce-trajectories", 1, "{}"
        f["episodes/observations"] = np.arange(12.0).reshape(6, 2)
        f["episodes/actions"] = np.zeros((4, 1))
        f["episodes/observation_pointer"], f["episodes/action_pointer"] = [0, 6], [0, 4]
        f["episodes/group"], f["episodes/seed"] = [0], [-1]
        f["groups/node_pointer"], f["groups/edge_pointer"] = [0, 2], [0, 3]
        f["groups/node_type"], f["groups/node_attributes"] = [0, 0], np.zeros((2, 0))
        f["groups/edges"], f["groups/edge_type"] = [[0, 0], [1, 1], [0, 1]], [0, 0, 1]
        f["groups/edge_attributes"] = np.zeros((3, 0))
        f.create_dataset("groups/parameters", data=[json.dumps({"mass": 2})], dtype=h5py.string_dtype())
    assert check_file(tmp_path / "x.h5") == []
    with pytest.warns(Doubt, match="x.h5 has no checksum"), Dataset.open(tmp_path / "x.h5") as data:
        assert data[0].observations[1, 0].tolist() == [4.0, 5.0]
        assert data[0].parameters == {"mass": 2}


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="episode 0"), Writer(tmp_path / "x.h5", {}) as writer:
        group = writer.add_group(Graph.from_edges(2, [(0, 1)]), {})
        writer.add_episode(group, np.zeros((3, 2, 1)), np.zeros((3, 2, 1)))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_data_set_is_not_written(tmp_path):
    with pytest.raises(InputError, match="no episode"), Writer(tmp_path / "x.h5", {}):
        pass
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, signal, sys
import numpy as np
from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory import Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with Writer(sys.argv[1], {}) as writer:
        group = writer.add_group(Graph.from_edges(2, [(0, 1)]), {})
        for _ in range(100):
            writer.add_episode(group, np.zeros((10_000, 2, 2)), np.zeros((9_999, 2, 1)))
except InputError as error:
    print(error)
"""


def test_a_file_that_cannot_grow_is_told_and_removed(tmp_path):
    """The kernel refuses bytes beyond a limit, as it does on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "x.h5")], capture_output=True, text=True, check=False
    )
    assert "cannot write" in done.stdout, done.stdout + done.stderr
    assert "nothing was kept" in done.stdout
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_same_data_gives_the_same_bytes(file, tmp_path):
    with Dataset.open(file) as data:
        data.save(tmp_path / "y.h5")
    assert (tmp_path / "y.h5").read_bytes() == file.read_bytes()


def test_books_of_a_file_carry_checksums(tmp_path):
    Dataset.from_arrays([np.zeros((3, 2, 1))], [np.zeros((2, 2, 1))], [[0], [1]]).save(tmp_path / "x.h5")
    content = (tmp_path / "x.h5").read_bytes()
    assert content[8] >= 2 and b"GCOL" not in content  # HDF5 1.10's layout, and no heap of texts, which has none
