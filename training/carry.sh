#!/bin/sh
# Gathers what training needs on a machine without network, in one folder of 6.5 MB (Debian or Ubuntu, x86-64): flite
# with one voice, festival, the HTS engine with its full-band voice, and Python packages. There:
# . training/carried.sh FOLDER
set -eu
folder=${1:-.carry}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
packages="libflite1 festival festlex-cmu festlex-poslex festvox-us-slt-hts libestools2.5 libhtsengine1"
(cd "$work" && apt-get download -qq $packages)
for package in $packages; do dpkg -x "$work/$package"_*.deb "$work/full"; done
libraries=usr/lib/x86_64-linux-gnu
mkdir -p "$work/root/$libraries" "$work/root/usr/bin" "$work/root/usr/share"
cp "$work/full/usr/bin/festival" "$work/root/usr/bin"
cp -r "$work/full/usr/share/festival" "$work/root/usr/share"
for name in estools.so.2.5 estbase.so.2.5 eststring.so.2.5 flite.so.1 flite_usenglish.so.1 flite_cmulex.so.1 \
    flite_cmu_us_rms.so.1 HTSEngine.so.1; do
    cp -L "$work/full/$libraries/lib$name" "$work/root/$libraries"
done
# The pronunciations of words that the training text has; it has no others.
"$python" -m training.carried_words "$work/root/usr/share/festival/dicts/cmu/cmudict-0.4.out"
# Both synthesizers link with libraries that play sound, which is never done here: empty ones stand in for them.
stand_in() { # stand_in SONAME PREFIX
    nm -D --undefined-only "$work/root/usr/bin/festival" "$work/root/$libraries"/*.so* |
        grep -o "$2_[a-z_]*@[A-Za-z0-9_.]*" | sort -u >"$work/symbols"
    sed 's/@.*/() { return -1; }/; s/^/long /' "$work/symbols" >"$work/stand_in.c"
    sed 's/\(.*\)@\(.*\)/\2 { global: \1; };/' "$work/symbols" |
        awk '{ names[$1] = names[$1] " " $4 } END { for (v in names) print v " { global:" names[v] " };" }' \
            >"$work/stand_in.map"
    "${CC:-cc}" -shared -fPIC -s "-Wl,-soname,$1" "-Wl,--version-script=$work/stand_in.map" \
        -o "$work/root/$libraries/$1" "$work/stand_in.c"
}
stand_in libasound.so.2 snd
stand_in libpulse-simple.so.0 pa
strip --strip-unneeded "$work/root/usr/bin/festival" "$work/root/$libraries"/*
tar c -C "$work/root" usr | xz --x86 --lzma2=preset=9e >"$folder/root.tar.xz"
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d "$folder" msgspec pystoi
"$python" -m pip download -q --no-deps --no-binary=pesq -d "$folder" pesq
du -sh "$folder"
