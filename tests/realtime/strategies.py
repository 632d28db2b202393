"""Hypothesis strategies for everything that may be said on the native wire."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from engine.api import ErrorInfo
from realtime.protocol import events as ev

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=40)
IDS = st.text(string.ascii_letters + string.digits + "_.:-", min_size=1, max_size=ev.MAX_ID_CHARS)
NAMES = st.text(min_size=1, max_size=20)

FORMATS = st.builds(
    ev.NativeAudioFormat,
    encoding=st.none() | NAMES,
    sample_rate=st.none() | INT64,
    bitrate=st.none() | INT64,
    complexity=st.none() | INT64,
    fec=st.none() | st.booleans(),
    packet_loss_percent=st.none() | INT64,
    dtx=st.none() | st.booleans(),
)
SAMPLINGS = st.builds(
    ev.NativeSamplingOptions,
    temperature=st.none() | NUMBER,
    top_k=st.none() | INT64,
    top_p=st.none() | NUMBER,
    repetition_penalty=st.none() | NUMBER,
    do_sample=st.none() | st.booleans(),
    repetition_window=st.none() | INT64,
    predictor_do_sample=st.none() | st.booleans(),
    predictor_temperature=st.none() | NUMBER,
    predictor_top_k=st.none() | INT64,
    predictor_top_p=st.none() | NUMBER,
    min_new_tokens=st.none() | INT64,
)
SETTINGS = st.builds(
    ev.NativeSpeechSettings,
    voice=st.none() | NAMES,
    language=st.none() | NAMES,
    instruct=st.none() | TEXT,
    seed=st.none() | INT64,
    format=st.none() | FORMATS,
    pace=st.none() | st.sampled_from(["lead", "burst"]),
    lead_ms=st.none() | INT64,
    word_times=st.none() | st.booleans(),
    speed=st.none() | NUMBER,
    text_layout=st.none() | st.sampled_from(["auto", "streaming", "full"]),
    max_frames=st.none() | INT64,
    chunk_frames=st.none() | st.lists(INT64, max_size=16).map(tuple),
    sampling=st.none() | SAMPLINGS,
)
CLIENT_EVENTS = st.one_of(
    st.builds(ev.SessionUpdate, settings=SETTINGS),
    st.builds(ev.SessionClose),
    st.builds(
        ev.SessionResume,
        session_id=NAMES,
        token=NAMES,
        responses=st.lists(
            st.builds(ev.ResumePosition, response_id=IDS, received_samples=U32, played_ms=st.none() | NUMBER),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(ev.ResponseCreate, response_id=st.none() | IDS, settings=SETTINGS, text=TEXT, end=st.booleans()),
    st.builds(ev.TextAppend, response_id=IDS, text=TEXT, at=st.none() | U32),
    st.builds(ev.TextFlush, response_id=IDS),
    st.builds(ev.TextEnd, response_id=IDS),
    st.builds(ev.ResponseCancel, response_id=IDS, played_ms=st.none() | NUMBER),
    st.builds(ev.PlaybackReport, response_id=IDS, played_ms=NUMBER),
)

HEARD = st.builds(ev.HeardBody, text=TEXT, remaining=TEXT, played_ms=NUMBER)
ERROR_FIELDS = {
    "code": NAMES,
    "message": TEXT,
    "param": st.none() | TEXT,
    "retryable": st.booleans(),
    "retry_after_ms": st.none() | INT64,
}
LIMITS = st.builds(
    ev.SessionLimitsInfo,
    max_message_bytes=INT64,
    max_response_chars=INT64,
    max_active_responses=INT64,
    idle_timeout_s=NUMBER,
    max_session_s=NUMBER,
)
SERVER_EVENTS = st.one_of(
    st.builds(
        ev.SessionCreated,
        session_id=NAMES,
        resume_token=NAMES,
        protocol=NAMES,
        server_version=NAMES,
        model=NAMES,
        voices=st.lists(NAMES, max_size=3).map(tuple),
        languages=st.lists(NAMES, max_size=3).map(tuple),
        settings=SETTINGS,
        limits=LIMITS,
    ),
    st.builds(ev.SessionUpdated, settings=SETTINGS),
    st.builds(
        ev.SessionResumed,
        session_id=NAMES,
        token=NAMES,
        grace_s=NUMBER,
        settings=SETTINGS,
        responses=st.lists(
            st.builds(ev.ResumedResponse, response_id=IDS, state=NAMES, response=st.none() | U32), max_size=3
        ).map(tuple),
    ),
    st.builds(
        ev.ResponseCreated,
        response_id=IDS,
        response=U32,
        format=st.builds(ev.ResponseAudioFormat, encoding=NAMES, sample_rate=INT64, pre_skip_samples=INT64),
        settings=SETTINGS,
    ),
    st.builds(
        ev.ResponseWords,
        response_id=IDS,
        words=st.lists(
            st.builds(
                ev.WordTiming, text=TEXT, raw_start=U32, raw_end=U32, start_ms=NUMBER, end_ms=NUMBER, segment=U16
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(ev.TextFlushed, response_id=IDS, flush=U32, end_sample=U32),
    st.builds(
        ev.ResponseDone,
        response_id=IDS,
        response=U32,
        status=st.sampled_from(["completed", "cancelled", "failed"]),
        audio_samples=INT64,
        audio_ms=NUMBER,
        nothing_spoken=st.booleans(),
        first_audio_ms=st.none() | NUMBER,
        heard=st.none() | HEARD,
        error=st.none() | st.builds(ErrorInfo, **ERROR_FIELDS),
    ),
    st.builds(ev.ResponseHeard, response_id=IDS, heard=HEARD),
    st.builds(ev.ErrorEvent, response_id=st.none() | IDS, **ERROR_FIELDS),
)
AUDIO_MESSAGES = st.builds(
    ev.AudioMessage,
    kind=st.sampled_from(ev.AudioKind),
    response=U32,
    sequence=U32,
    sample_time=U32,
    packets=st.lists(st.binary(max_size=50), min_size=1, max_size=8).map(tuple),
)
