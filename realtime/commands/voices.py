"""``voicewire voices``: what a model can speak with, and the operator's own voices, which every key may use."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from engine.api import ClonedVoice, EngineInfo, InvalidRequest
from realtime.commands.speech_fields import read_embedding, read_file
from realtime.commands.startup import WRONG_SETTINGS
from realtime.config import ConfigError, ServerConfig, load_config
from realtime.engine_factory import add_model_argument, running_engine
from realtime.voice_cloner import VoiceCloner, check_transcript
from sessions.owned_files import voices_folder
from sessions.voices.lookup import blend, embedding_numbers, resembles_built_in
from sessions.voices.store import VoiceExists, VoiceStore
from sessions.voices.voice import SHARED, StoredVoice, VoiceManifest, check_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_where(parser)
    parser.set_defaults(act=list_voices, model=None, config=None, folder=None, key_name=SHARED)
    where = argparse.ArgumentParser(add_help=False)
    _add_where(where)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = actions.add_parser("list", help="the voices of the model, and those stored", parents=[where])
    listing.set_defaults(act=list_voices)
    adding = actions.add_parser("add", help="store a voice made of a recording, or of an embedding", parents=[where])
    adding.set_defaults(act=add_voice)
    _add_about(adding)
    adding.add_argument("file", type=Path, help="a recording of 1 to 30 s, or a JSON list of numbers (.json)")
    adding.add_argument("--transcript", default="", help="what is said in it: then it is cloned in context")
    blending = actions.add_parser("blend", help="store a voice between two stored voices", parents=[where])
    blending.set_defaults(act=blend_voices)
    _add_about(blending)
    blending.add_argument("first")
    blending.add_argument("second")
    blending.add_argument("--weight", type=float, default=0.5, help="0 is the first voice, 1 the second (default: 0.5)")
    embedding = actions.add_parser("embed", help="print the speaker embedding of a recording as JSON", parents=[where])
    embedding.set_defaults(act=embed_recording)
    embedding.add_argument("file", type=Path, help="a recording of 1 to 30 s")
    embedding.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to a file instead")
    removing = actions.add_parser("remove", help="delete a stored voice", parents=[where])
    removing.set_defaults(act=remove_voice)
    removing.add_argument("name")


def _add_where(parser: argparse.ArgumentParser) -> None:
    """Add options that are valid before and after the action."""
    absent = argparse.SUPPRESS
    add_model_argument(parser, default=absent)
    parser.add_argument("--config", type=Path, metavar="FILE", default=absent, help="the server's TOML file")
    parser.add_argument("--folder", type=Path, default=absent, help="where voices are stored (default: voices.folder)")
    parser.add_argument("--key-name", default=absent, metavar="KEY", help="name of an API key (default: all share it)")


def _add_about(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the new voice")
    parser.add_argument("--consent", required=True, help="how the speaker agreed to it")
    parser.add_argument("--description", default="")


def run(args: argparse.Namespace) -> int:
    act: Callable[[argparse.Namespace, ServerConfig], Awaitable[int]] = args.act
    try:
        return asyncio.run(_acted(act, args))
    except ConfigError as error:
        print(f"voicewire voices: {error}", file=sys.stderr)
        return WRONG_SETTINGS


async def _acted(act: Callable[[argparse.Namespace, ServerConfig], Awaitable[int]], args: argparse.Namespace) -> int:
    return await act(args, load_config(args.config, os.environ))


async def list_voices(args: argparse.Namespace, config: ServerConfig) -> int:
    async with running_engine(args.model) as engine:
        print(table(engine.info, _store(args, config).list(args.key_name)))
    return 0


async def add_voice(args: argparse.Namespace, config: ServerConfig) -> int:
    manifest = _manifest(args, transcript=args.transcript)
    check_transcript(args.transcript)
    async with running_engine(args.model) as engine:
        if resembles_built_in(args.name, engine.info):
            raise VoiceExists(f"voice {args.name!r} belongs to the model", "name")
        clone, sample_s = await _cloned(args.file, args.transcript, VoiceCloner(config, engine))
        source = "audio" if sample_s else "embedding"
        manifest = msgspec.structs.replace(
            manifest,
            model=engine.info.model,
            source=source,
            sample_s=round(sample_s, 2),
            transcript=args.transcript if sample_s else "",
        )
        _store(args, config).add(StoredVoice(manifest, clone))
    print(f"voice {args.name} is stored")
    return 0


async def blend_voices(args: argparse.Namespace, config: ServerConfig) -> int:
    store = _store(args, config)
    first, second = (_found(store, args.key_name, name) for name in (args.first, args.second))
    manifest = msgspec.structs.replace(_manifest(args), model=first.manifest.model, source="blend")
    store.add(StoredVoice(manifest, blend(first.clone, second.clone, args.weight)))
    print(f"voice {args.name} is stored")
    return 0


async def embed_recording(args: argparse.Namespace, config: ServerConfig) -> int:
    data = read_file(args.file, "file")
    async with running_engine(args.model) as engine:
        voice, _ = await VoiceCloner(config, engine).from_upload(data, "")
    numbers = embedding_numbers(voice)
    text = msgspec.json.encode(numbers).decode()
    if args.output is None:
        print(text)
    else:
        args.output.write_text(f"{text}\n", encoding="utf-8")
        print(f"{len(numbers)} numbers are written to {args.output}")
    return 0


async def remove_voice(args: argparse.Namespace, config: ServerConfig) -> int:
    if not _store(args, config).remove(args.key_name, args.name):
        raise InvalidRequest(f"no voice {args.name!r} is stored", "name")
    print(f"voice {args.name} is deleted")
    return 0


def table(info: EngineInfo, stored: list[VoiceManifest]) -> str:
    """Format one line per voice: name, languages, description; a star marks stored voices."""
    rows = [(voice.name, ", ".join(voice.languages), voice.description) for voice in info.voices]
    rows += [(manifest.name, "*", manifest.description) for manifest in stored]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return "\n".join(f"{name:{widths[0]}}  {spoken:{widths[1]}}  {about}".rstrip() for name, spoken, about in rows)


async def _cloned(file: Path, transcript: str, cloning: VoiceCloner) -> tuple[ClonedVoice, float]:
    """The voice and the length of the recording; 0 for an embedding."""
    if file.suffix == ".json":
        return cloning.from_embedding(read_embedding(file, "file")), 0.0
    return await cloning.from_upload(read_file(file, "file"), transcript)


def _manifest(args: argparse.Namespace, transcript: str = "") -> VoiceManifest:
    manifest = VoiceManifest(
        name=args.name,
        owner=args.key_name,
        created_s=int(time.time()),
        consent=args.consent,
        description=args.description,
        transcript=transcript,
    )
    check_manifest(manifest)
    return manifest


def _found(store: VoiceStore, owner: str, name: str) -> StoredVoice:
    if (found := store.find(owner, name)) is None:
        raise InvalidRequest(f"no voice {name!r} is stored", "voice")
    return found


def _store(args: argparse.Namespace, config: ServerConfig) -> VoiceStore:
    voices = config.voices
    return VoiceStore(args.folder or voices_folder(voices.folder), voices.max_voices, voices.max_voices_per_key)
