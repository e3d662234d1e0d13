"""Ways to spoil bytes, JSON values, arrays and tables."""

import json
import math
import os
import zipfile

import h5py
import numpy as np

ODD = [
    None, True, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**40), 10**400, 0.5, -0.0, 1e308, -1e-300, math.nan, math.inf,
    "", "x", "nan", "9" * 5000, "=1+1", "\x00", "é" * 300, [], [1], [[]], ["a", 2], {}, {"x": 1}, {"": None},
]  # fmt: skip
CELLS = [
    "", " ", "nan", "inf", "-inf", "1e999", "x", "=1+1", "+-0", "²", "٣", "1_0", "0x1", "9" * 5000, "200000000", "-7",
    '"', '"a', "a,b", "1;2", "\t", "true", "é", "\x00", "1.5", "0", "-0", "a" * 2000,
]  # fmt: skip


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def spoil_bytes(path, rng):
    """Bits flipped anywhere, or where there is something; a part gone, changed, emptied, twice or from elsewhere."""
    content = bytearray(path.read_bytes())
    kind = int(rng.integers(10)) if content else 5
    if kind <= 2 or kind >= 8:
        places = np.arange(len(content))
        if kind >= 2:
            some = np.flatnonzero(np.frombuffer(bytes(content), np.uint8))
            places = np.clip(some + rng.integers(-4, 5, len(some)), 0, len(content) - 1) if len(some) else places
        for place in rng.choice(places, int(rng.integers(1, 9))):
            content[place] ^= 1 << int(rng.integers(8))
    elif kind == 6:
        start, size = int(rng.integers(len(content))), int(rng.integers(1, 512))
        content[start : start + size] = bytes(len(content[start : start + size]))
    elif kind == 7:
        start, other, size = (int(n) for n in rng.integers(1, len(content) + 1, 3))
        content[start : start + size % 4096] = content[other : other + size % 4096]
    elif kind == 3:
        del content[int(rng.integers(len(content))) :]
    elif kind == 4:
        start = int(rng.integers(len(content)))
        content[start : start + int(rng.integers(1, 64))] = rng.bytes(int(rng.integers(0, 64)))
    else:
        content += rng.bytes(int(rng.integers(1, 100)))
    path.write_bytes(bytes(content))


def spoil_json(value, rng):
    """The same JSON values with one of them replaced, removed or nested."""
    places = []

    def walk(part):
        for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
            places.append((part, key))
            walk(part[key])

    walk(value)
    if not places or rng.random() < 0.03:
        return pick(rng, ODD)
    part, key = pick(rng, places)
    kind = int(rng.integers(10))
    if kind == 0:
        del part[key]
    elif kind == 1 and isinstance(part[key], int | float) and not isinstance(part[key], bool):
        part[key] = part[key] * pick(rng, [-1, 2, 0.5, 10**6, 1e-9])
    elif kind == 2:
        part[key] = [part[key]]
    elif kind == 3:
        deep = []
        for _ in range(int(pick(rng, [5, 70, 500]))):
            deep = [deep]
        part[key] = deep
    else:
        part[key] = pick(rng, ODD)
    return value


def json_text(value):
    return json.dumps(value)


def spoil_array(values, rng):
    """Another shape, type or content."""
    values, kind = np.array(values), int(rng.integers(9))
    if kind == 0:
        return values.astype(pick(rng, [np.int8, np.float16, np.complex64, np.uint64, bool, "S3", np.int64]))
    if kind == 1:
        return values[: int(rng.integers(0, len(values) + 1))] if values.ndim else np.zeros(3)
    if kind == 2:
        return values[..., None] if rng.random() < 0.5 else values.reshape(-1)
    if kind == 3:
        return np.concatenate([values, values]) if values.ndim else values[None]
    if kind == 4:
        return np.zeros(pick(rng, [(), (0,), (1, 1), (3, 0), (100_000,), (2, 2, 2, 2)]), values.dtype)
    flat = values.reshape(-1).copy()
    if flat.size and flat.dtype.kind in "fiu":
        whole = [0, -1, 1, 10**6, 2**31, 2**62]
        odd = [np.nan, np.inf, -np.inf, 1e308, 1e-300, -1e30, 0.0] if flat.dtype.kind == "f" else whole
        with np.errstate(all="ignore"):
            for place in rng.integers(0, flat.size, int(rng.integers(1, 4))):
                flat[place] = np.array(pick(rng, odd)).astype(flat.dtype)
    return flat.reshape(values.shape)


def spoil_table(text, rng):
    """A CSV or TOML text with a cell, a line or a separator changed."""
    lines = text.split("\n")
    kind, k = int(rng.integers(10)), int(rng.integers(len(lines)))
    if kind <= 4:
        cells = lines[k].split(",")
        cells[int(rng.integers(len(cells)))] = pick(rng, CELLS)
        lines[k] = ",".join(cells)
    elif kind == 5:
        del lines[k]
    elif kind == 6:
        lines.insert(k, lines[int(rng.integers(len(lines)))])
    elif kind == 7:
        lines[k] += "," + pick(rng, CELLS)
    elif kind == 8:
        many = int(pick(rng, [3, 1000, 50_000]))
        if rng.random() < 0.5:
            lines[k] += ",1" * many
        else:
            lines[k:k] = [lines[-2 if len(lines) > 1 else 0]] * many
    else:
        lines = [line.replace(",", pick(rng, [";", "\t", " ", ",,"])) for line in lines]
    return "\n".join(lines)


TOML = [
    "dt = {}", "episodes = {}", "nodes = {}", "actions = {}", "tied = {}", "late_action = {}", "actuated = {}",
    "action_bounds = {}", "structure = {}", "observations = {}", "undirected = {}", "parameters = {}", "odd = {}",
    "[structure]\npoints = {}", "[action_bounds]\ntorque = {}", "exogenous = {}",
]  # fmt: skip
TOML_VALUES = [
    "0", "-1", "nan", "inf", "1e400", "9" * 5000, "99999999999999999999", '"x"', "[]", "[0, 1]", "[1, 0]", '["a"]',
    "[nan, 1]", "[-inf, inf]", "true", "{}", "{x = 1}", "{x = [0, 1]}", "[" * 2000, "[" * 80 + "]" * 80,
    '[["x", "y", "vx", "vy"]]', "[[0, 1, 2, 3]]", "[[0, 1, 2]]", "[[-1, 99, 0, 0]]", "1979-05-27", "[0.1, 99]",
]  # fmt: skip


def spoil_toml(text, rng):
    return text + "\n" + pick(rng, TOML).format(pick(rng, TOML_VALUES)) + "\n"


# ---- HDF5 ----


def sign(file):
    """Checksums of what a file now holds."""
    from gce.files import checksum
    from gce.trajectory.storage import CHECKSUM, METADATA_CHECKSUM

    def signed(name, item):
        if isinstance(item, h5py.Dataset) and CHECKSUM in item.attrs and item.dtype.kind in "fiuOS":
            item.attrs[CHECKSUM] = checksum(item[()])

    file.visititems(signed)
    if METADATA_CHECKSUM in file.attrs and isinstance(file.attrs.get("metadata"), str | bytes):
        file.attrs[METADATA_CHECKSUM] = checksum(np.array([file.attrs["metadata"]], object))


def arrays_in(file):
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def spoil_h5(path, rng):
    """An array, an attribute or the metadata changed; most times with checksums that fit."""
    with h5py.File(path, "r+") as file:
        name, kind = pick(rng, arrays_in(file)), int(rng.integers(8))
        attributes = dict(file[name].attrs)
        if kind == 0:
            del file[pick(rng, [name, name.split("/")[0]])]
        elif kind == 1:
            place = file if rng.random() < 0.6 else file[name]
            key, value = pick(rng, list(place.attrs)), pick(rng, [*ODD, np.zeros(3), np.float64(1.0)])
            del place.attrs[key]
            if value is not None and not isinstance(value, dict) and rng.random() < 0.8:
                try:
                    place.attrs[key] = value
                except (TypeError, ValueError, OverflowError, OSError, RuntimeError):
                    place.attrs[key] = "odd"
        elif kind == 2:
            text = json_text(spoil_json(json.loads(file.attrs["metadata"]), rng))
            file.attrs["metadata"] = text if rng.random() < 0.2 else np.bytes_(text)
        elif file[name].dtype.kind in "OS":
            texts = [json_text(spoil_json(json.loads(text), rng)) for text in file[name][()]]
            del file[name]
            old = rng.random() < 0.2
            file.create_dataset(
                name, data=texts if old else np.array(texts, "S"), dtype=h5py.string_dtype() if old else None
            )
            file[name].attrs.update(attributes)
        else:
            values = spoil_array(file[name][()], rng)
            packed = {"compression": "gzip"} if values.ndim and values.size and rng.random() < 0.3 else {}
            del file[name]
            file.create_dataset(name, data=values, **packed)
            file[name].attrs.update(attributes)
        if rng.random() < 0.8:
            sign(file)


def bomb_h5(path, rng):
    """Links to elsewhere, and arrays far larger than their file."""
    with h5py.File(path, "r+") as file:
        name = pick(rng, arrays_in(file))
        attributes, shape, dtype = dict(file[name].attrs), file[name].shape, file[name].dtype
        other, kind = path.with_name("other.h5"), int(rng.integers(9))
        with h5py.File(other, "w") as beside:
            beside["x"] = np.zeros(shape or (1,))
        rows = int(pick(rng, [10**7, 10**9, 10**12]))
        if kind == 0:
            place = pick(rng, [name, name.split("/")[0]])
            file.move(place, "kept")
            file[place] = h5py.SoftLink(pick(rng, ["/kept", "/none", "/" + place]))
            return
        del file[name]
        if kind == 1:
            file[name] = h5py.ExternalLink(pick(rng, [str(other), "/etc/passwd", str(path.with_name("pipe"))]), "x")
            return
        if kind == 2:
            pairs = [(pick(rng, [str(other), "/etc/passwd", "/dev/zero"]), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset(name, shape, "f8", external=pairs)
        elif kind == 3:
            layout = h5py.VirtualLayout(shape, "f8")
            layout[...] = h5py.VirtualSource(str(other), "x", shape)
            file.create_virtual_dataset(name, layout)
        elif kind == 4:
            wide = [max(1, n) for n in shape[1:]]
            file.create_dataset(name, (rows, *wide), "f8", chunks=(1000, *wide), compression="gzip")
        elif kind == 5:
            file.create_dataset(name, (rows, *shape[1:]), "f4")
        elif kind == 6:
            file.create_dataset(name, (max(1, shape[0]), 10**8), "f4", chunks=(1, 10**8), compression="gzip")
        elif kind == 7 and dtype.kind in "OS":
            file.create_dataset(name, data=["[" * 10**6] * 50, dtype=h5py.string_dtype())
        else:
            file.create_dataset(name, data=np.zeros((3 * 10**6, 2)), compression="gzip", compression_opts=9)
        file[name].attrs.update(attributes)


def as_others_write(path):
    """The same data set as h5py writes it by default: texts of any length, books without checksums."""
    other = path.with_name("others.h5")
    with h5py.File(path) as file, h5py.File(other, "w") as old:
        for name, value in file.attrs.items():
            old.attrs[name] = value.decode() if isinstance(value, bytes) else value
        for name in arrays_in(file):
            values = file[name][()]
            text = values.dtype.kind in "SO"
            old.create_dataset(name, data=values.astype(object) if text else values,
                               dtype=h5py.string_dtype() if text else values.dtype)  # fmt: skip
            old[name].attrs.update(file[name].attrs)
    other.replace(path)


def spoil_place(path, rng):
    """Something else where a file should be."""
    kind = int(rng.integers(7))
    content = path.read_bytes()
    path.unlink()
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    elif kind == 4:
        path.touch()
    elif kind == 5:
        with path.open("wb") as file:
            file.write(content[:100])
            file.truncate(int(pick(rng, [10**5, 10**11])))


def bomb_npz(path, rng):
    """Few bytes that say that they are many."""
    kind = int(rng.integers(5))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if kind == 0:
            with archive.open("observations.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": "<f8", "fortran_order": False, "shape": (int(pick(rng, [10**5, 2 * 10**7])), 3, 2)}
                )
                for _ in range(60):
                    file.write(bytes(10**6))
        elif kind == 1:
            for k in range(3000):
                archive.writestr(f"x{k}.npy", b"")
        elif kind == 2:
            archive.writestr("observations.npy", np.lib.format.magic(1, 0) + b"\xff\xff" + b"(" * 65535)
        elif kind == 3:
            archive.writestr("observations.npy", b"x" * 10**6)
            archive.writestr("observations.npy", b"y")
        else:
            archive.writestr("observations.npy", b"")
    if rng.random() < 0.2:
        spoil_bytes(path, rng)
