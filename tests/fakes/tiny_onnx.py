"""Small ONNX files, written field by field: what a speech tokenizer and a speaker network look like from outside."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

FLOAT, INT32, INT64 = 1, 6, 7
IR_VERSION, OPSET = 8, 13


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: int | float | str | list[int]) -> bytes:
    match value:
        case int():
            held, kind = number(3, value), 2
        case float():
            held, kind = varint(2 << 3 | 5) + struct.pack("<f", value), 1
        case str():
            held, kind = blob(4, value), 3
        case _:
            held, kind = b"".join(number(8, item) for item in value), 7
    return blob(1, name) + held + number(20, kind)


def node(kind: str, inputs: Iterable[str], output: str, **attributes: int | float | str | list[int]) -> bytes:
    names = b"".join(blob(1, name) for name in inputs)
    held = b"".join(blob(5, attribute(name, value)) for name, value in attributes.items())
    return names + blob(2, output) + blob(4, kind) + held


def constant(name: str, values: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> bytes:
    kind = FLOAT if values.dtype == np.float32 else INT64
    dims = b"".join(number(1, size) for size in values.shape)
    return dims + number(2, kind) + blob(8, name) + blob(9, values.tobytes())


def port(name: str, kind: int, shape: list[int | str]) -> bytes:
    dims = b"".join(blob(1, number(1, size) if isinstance(size, int) else blob(2, size)) for size in shape)
    return blob(1, name) + blob(2, blob(1, number(1, kind) + blob(2, dims)))


def model(nodes: list[bytes], constants: list[bytes], inputs: list[bytes], outputs: list[bytes]) -> bytes:
    graph = b"".join(
        blob(field, item)
        for field, items in ((1, nodes), (5, constants), (11, inputs), (12, outputs))
        for item in items
    )
    return number(1, IR_VERSION) + blob(7, graph + blob(2, "tiny")) + blob(8, blob(1, "") + number(2, OPSET))


def write_speaker_network(path: Path, embedding_size: int = 192, bins: int = 80) -> None:
    """[1, T, bins] -> [1, size]: the mean over time of a random projection, bent so that no mean is lost."""
    weight = np.random.default_rng(1).standard_normal((bins, embedding_size)).astype(np.float32)
    nodes = [
        node("MatMul", ["feats", "weight"], "projected"),
        node("Relu", ["projected"], "bent"),
        node("ReduceMean", ["bent"], "embedding", axes=[1], keepdims=0),
    ]
    inputs = [port("feats", FLOAT, [1, "T", bins])]
    path.write_bytes(
        model(nodes, [constant("weight", weight)], inputs, [port("embedding", FLOAT, [1, embedding_size])])
    )


def write_speech_tokenizer(path: Path, num_codes: int = 6561, bins: int = 128) -> None:
    """[1, bins, T] and [1] = T -> one id for each four frames, by how loud they are."""
    constants = [
        constant("scale", np.array([1000.0], np.float32)),
        constant("codes", np.array([float(num_codes)], np.float32)),
        constant("nothing", np.array([0.0], np.float32)),
    ]
    nodes = [
        node("AveragePool", ["feats"], "pooled", kernel_shape=[4], strides=[4], ceil_mode=1),
        node("ReduceMean", ["pooled"], "loudness", axes=[1], keepdims=0),
        node("Cast", ["length"], "frames", to=FLOAT),
        node("Mul", ["frames", "nothing"], "zero"),
        node("Add", ["loudness", "zero"], "heard"),
        node("Mul", ["heard", "scale"], "scaled"),
        node("Abs", ["scaled"], "size"),
        node("Mod", ["size", "codes"], "wrapped", fmod=1),
        node("Cast", ["wrapped"], "tokens", to=INT32),
    ]
    inputs = [port("feats", FLOAT, [1, bins, "T"]), port("length", INT32, [1])]
    path.write_bytes(model(nodes, constants, inputs, [port("tokens", INT32, [1, "N"])]))


def write_encoders(folder: Path) -> None:
    """Both, by the released names."""
    write_speaker_network(folder / "campplus.onnx")
    write_speech_tokenizer(folder / "speech_tokenizer_v3.onnx")
