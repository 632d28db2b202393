#!/usr/bin/env bash
# One task with curl: bash curl.sh TASK URL [RECORDING]. Writes TASK.wav (batch: batch.json) into the current folder.
#   bash examples/online/curl.sh speak http://127.0.0.1:8765
# TASK is one of: speak custom_voice voice_design clone clone_in_context embedding batch
set -euo pipefail
task=$1 url=$2 recording=${3:-}
headers=(-H "Content-Type: application/json")
key=()
[ -z "${VOICEWIRE_API_KEY:-}" ] || key=(-H "Authorization: Bearer $VOICEWIRE_API_KEY")

post() { # post PATH FILE: sends standard input; prints the status, the size and the time to the first byte
    curl -sS --fail-with-body "${headers[@]}" "${key[@]}" --data-binary @- "$url/v1/audio/$1" -o "$2" \
        -w '{"status": %{http_code}, "bytes": %{size_download}, "first_byte_s": %{time_starttransfer}}\n' ||
        { cat "$2" >&2 && exit 1; }
}

data_uri() { # data_uri FILE
    printf 'data:audio/wav;base64,' && base64 -w0 "$1"
}

case $task in
    speak)
        post speech speak.wav <<'END'
{"input": "Hello there, how are you?", "response_format": "wav", "temperature": 0.7, "seed": 5}
END
        ;;
    custom_voice)
        post speech custom_voice.wav <<'END'
{"input": "I did it.", "instructions": "Very happy.", "response_format": "wav", "seed": 5}
END
        ;;
    voice_design)
        post speech voice_design.wav <<'END'
{"input": "Welcome aboard.", "instructions": "A calm, deep, old voice.", "response_format": "wav", "seed": 5}
END
        ;;
    clone)
        post speech clone.wav <<END
{"input": "Hello there.", "ref_audio": "$(data_uri "$recording")", "response_format": "wav", "seed": 5}
END
        ;;
    clone_in_context)
        post speech clone_in_context.wav <<END
{"input": "Hello there.", "ref_audio": "$(data_uri "$recording")", "ref_text": "${TRANSCRIPT:?what is said in it}",
 "response_format": "wav", "seed": 5}
END
        ;;
    embedding) # store a voice, take its embedding, speak by it, and delete the voice
        voices=$url/v1/audio/voices
        curl -sS --fail-with-body "${key[@]}" "$voices" -F name=curl-example -F consent="my own voice" \
            -F "audio_sample=@$recording" >/dev/null
        embedding=$(curl -sS --fail-with-body "${key[@]}" "$voices/curl-example/embedding" | grep -o '\[.*\]')
        curl -sS --fail-with-body "${key[@]}" -X DELETE "$voices/curl-example" >/dev/null
        post speech embedding.wav <<END
{"input": "Hello there.", "speaker_embedding": $embedding, "response_format": "wav", "seed": 5}
END
        ;;
    batch)
        post speech/batch batch.json <<'END'
{"items": [{"input": "Hello there."}, {"input": "How are you?"}, {"input": "Fine, thank you."}],
 "response_format": "wav", "seed": 5}
END
        ;;
    *) echo "no such task: $task" >&2 && exit 2 ;;
esac
