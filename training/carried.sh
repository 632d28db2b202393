# Source me with the folder that carry.sh filled: unpacks it beside the project and lets programs find what is in it.
carried=$(cd "${1:-.carry}" && pwd)
unpacked=${CARRIED_ROOT:-/tmp/voicewire-carried}
if [ ! -e "$unpacked/done" ]; then
    mkdir -p "$unpacked/site"
    tar xJf "$carried/root.tar.xz" -C "$unpacked"
    tar xzf "$carried"/pesq-*.tar.gz -C "$unpacked"
    # It asks for a package that only its own tests need.
    sed -i '/setup_requires/d' "$unpacked"/pesq-*/setup.py
    for package in "$carried"/*.whl "$unpacked"/pesq-*; do
        python3 -m pip install -q --no-index --no-deps --no-build-isolation --target "$unpacked/site" "$package"
    done
    touch "$unpacked/done"
fi
# festival looks for its files at this place only
[ -e /usr/share/festival ] || ln -s "$unpacked/usr/share/festival" /usr/share/festival
export PATH="$unpacked/usr/bin:$PATH"
export LD_LIBRARY_PATH="$unpacked/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$unpacked/site${PYTHONPATH:+:$PYTHONPATH}"
