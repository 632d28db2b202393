#!/bin/sh
# Gathers what training needs on a machine without network: flite's and ALSA's libraries, and the prose file, in one
# folder of about 15 MB (Debian or Ubuntu, x86-64). There:  . training/carried.sh FOLDER
set -eu
folder=${1:-.carry}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
(cd "$work" && apt-get download -qq libflite1 libasound2 wordnet-base wamerican)
cp "$work"/libflite1_*.deb "$work"/libasound2_*.deb "$folder"
for package in wordnet-base wamerican; do dpkg -x "$work/$package"_*.deb "$work/root"; done
${PYTHON:-python3} -m training.corpus.build --words "$work/root/usr/share/dict/american-english" \
    --wordnet "$work/root/usr/share/wordnet" --prose "$folder/prose.txt.xz"
du -sh "$folder"
