# What a fresh Debian or Ubuntu needs, for scripts to source (bash, set -euo pipefail, in the repository).
#
#   need PROBE PACKAGE...   remember the Debian packages unless the command line PROBE succeeds
#   install_needed          install what was remembered, with sudo where that is needed
#   find_python             set PYTHON to an interpreter from 3.10 on (one given in $PYTHON is taken)
#   install_azurite         install Microsoft's emulator of Azure Storage from npm to the user's cache
#   install_kustomize       build kustomize from the Go module proxy to the user's cache
#   make_venv NAME EXTRAS   make or renew a virtual environment with the project and EXTRAS, and set VENV
#
# The environment is $FUSESTRIPE_VENV, or lies in the user's cache; it is renewed only when pyproject.toml, the
# extras or the interpreter change, so that a second run is quick.

PACKAGES=()

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

need() {
    local probe=$1
    shift
    if ! bash -c "$probe" >/dev/null 2>&1; then
        PACKAGES+=("$@")
    fi
}

install_needed() {
    if ((${#PACKAGES[@]} == 0)); then
        return
    fi
    command -v apt-get >/dev/null || fail "install these first, by their names on this system: ${PACKAGES[*]}"
    local root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "as root: apt-get install ${PACKAGES[*]}"
        root=(sudo)
    fi
    say "installing ${PACKAGES[*]}"
    "${root[@]}" apt-get -qq update
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
        apt-get -qq install --no-install-recommends "${PACKAGES[@]}" >/dev/null
    PACKAGES=()
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            PYTHON=$candidate
            return
        fi
    done
    fail "Python 3.10 or newer is needed${PYTHON:+, and $PYTHON is not}: apt-get install python3"
}

# What mounting needs, and what pyfuse3 is built with where it has no wheel.
need_fuse_and_python() {
    need 'command -v python3' python3
    install_needed
    find_python
    local package
    package=$(basename "$PYTHON")
    need 'command -v fusermount3' fuse3
    need 'command -v pkg-config' pkg-config
    need 'pkg-config --exists fuse3' libfuse3-dev
    need 'command -v cc' gcc libc6-dev
    need "'$PYTHON' -c 'import ensurepip, venv'" "$package-venv"
    need "'$PYTHON' -c 'import os, sysconfig
os.stat(os.path.join(sysconfig.get_path(\"include\"), \"Python.h\"))'" "$package-dev"
}

need_fuse_device() {
    [[ -c /dev/fuse ]] || fail "/dev/fuse is missing: modprobe fuse (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
}

install_azurite() {
    local directory=${XDG_CACHE_HOME:-$HOME/.cache}/fusestripe-dev/azurite wanted=azurite@3.35.0 lock
    mkdir -p "$directory"
    exec {lock}>"$directory.lock"
    flock "$lock"
    if [[ $(cat "$directory/stamp" 2>/dev/null) != "$wanted" ]]; then
        say "installing $wanted to $directory"
        npm install --prefix "$directory" --no-audit --no-fund --omit=optional --loglevel=error "$wanted" >/dev/null
        echo "$wanted" >"$directory/stamp"
    fi
    exec {lock}>&-
}

# The release that kubectl 1.27 has in it: what it takes, all newer ones take. Go 1.19 builds it.
install_kustomize() {
    local directory=${XDG_CACHE_HOME:-$HOME/.cache}/fusestripe-dev/kustomize wanted=kustomize/v5@v5.0.1 lock
    mkdir -p "$directory"
    exec {lock}>"$directory.lock"
    flock "$lock"
    if [[ $(cat "$directory/stamp" 2>/dev/null) != "$wanted" ]]; then
        say "building $wanted to $directory"
        GOBIN=$directory CGO_ENABLED=0 go install -ldflags '-s -w' "sigs.k8s.io/kustomize/$wanted" 2>/dev/null ||
            fail "go install sigs.k8s.io/kustomize/$wanted failed"
        echo "$wanted" >"$directory/stamp"
    fi
    exec {lock}>&-
}

make_venv() {
    local name=$1 extras=$2 version wanted lock
    version=$("$PYTHON" -c 'import sys; print(f"{sys.version_info.major}.{sys.version_info.minor}")')
    VENV=${FUSESTRIPE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/fusestripe-dev/$name-$version}
    mkdir -p "$(dirname "$VENV")"
    exec {lock}>"$VENV.lock"
    flock "$lock"
    # One stamp for all that decides what is installed. An environment a digest would leave gigabytes behind.
    wanted=$({ echo "$extras"; "$PYTHON" -VV; cat pyproject.toml; } | sha256sum)
    if [[ $(cat "$VENV/stamp" 2>/dev/null) != "$wanted" ]]; then
        say "installing fusestripe with [$extras] to $VENV"
        rm -f "$VENV/stamp"
        if [[ $("$VENV/bin/python" -VV 2>/dev/null) != "$("$PYTHON" -VV)" ]]; then
            # Cleared only where it is one already: whoever names another directory keeps what is in it.
            "$PYTHON" -m venv $([[ -e $VENV/pyvenv.cfg ]] && echo --clear) "$VENV"
        fi
        "$VENV/bin/pip" install -q --disable-pip-version-check --root-user-action=ignore -e ".[$extras]"
        echo "$wanted" >"$VENV/stamp"
    fi
    exec {lock}>&-
    # The environment may have been made from another clone: this one comes first.
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    export PATH=$VENV/bin:$PATH
}
