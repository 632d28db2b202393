# Source me with the folder that carry.sh filled: unpacks the libraries beside it and lets programs find them.
carried=$(cd "${1:-.carry}" && pwd)
unpacked=${CARRIED_ROOT:-/tmp/voicewire-carried}
if [ ! -e "$unpacked/done" ]; then
    mkdir -p "$unpacked/usr/lib/x86_64-linux-gnu"
    for package in "$carried"/*.deb; do dpkg -x "$package" "$unpacked"; done
    cp "$carried/libpulse-simple.so.0" "$unpacked/usr/lib/x86_64-linux-gnu"
    touch "$unpacked/done"
fi
# festival looks for its files at this place only
[ -e /usr/share/festival ] || ln -s "$unpacked/usr/share/festival" /usr/share/festival
export PATH="$unpacked/usr/bin:$PATH"
export LD_LIBRARY_PATH="$unpacked/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PROSE_FILE="$carried/prose.txt.xz"
