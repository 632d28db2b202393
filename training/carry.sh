#!/bin/sh
# Gathers what training needs on a machine without network: flite's and ALSA's libraries, festival with its full-band
# voice, and the prose file, in one folder of about 20 MB (Debian or Ubuntu, x86-64). There:  . training/carried.sh FOLDER
set -eu
folder=${1:-.carry}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
(cd "$work" && apt-get download -qq libflite1 libasound2 wordnet-base wamerican \
    festival festlex-cmu festlex-poslex festvox-us-slt-hts libestools2.5)
for package in libflite1 libasound2 festival festlex-cmu festlex-poslex festvox-us-slt-hts libestools2.5; do
    cp "$work/$package"_*.deb "$folder"
done
# festival links with PulseAudio to play sound, which is never done here: an empty library stands in for forty.
printf 'void *pa_simple_new() { return 0; }\nvoid pa_simple_free() {}\nint pa_simple_write() { return -1; }\n' >"$work/pulse.c"
printf 'int pa_simple_drain() { return -1; }\nint pa_simple_flush() { return -1; }\n' >>"$work/pulse.c"
printf 'const char *pa_strerror(int e) { (void)e; return ""; }\n' >>"$work/pulse.c"
echo 'PULSE_0 { global: *; };' >"$work/pulse.map"
"${CC:-cc}" -shared -fPIC -Wl,-soname,libpulse-simple.so.0 "-Wl,--version-script=$work/pulse.map" \
    -o "$folder/libpulse-simple.so.0" "$work/pulse.c"
for package in wordnet-base wamerican; do dpkg -x "$work/$package"_*.deb "$work/root"; done
${PYTHON:-python3} -m training.corpus.build --words "$work/root/usr/share/dict/american-english" \
    --wordnet "$work/root/usr/share/wordnet" --prose "$folder/prose.txt.xz"
du -sh "$folder"
