#!/bin/sh
# Make .venv hold what uv.lock says; a smaller set leaves what a larger one added. Called by the Makefile; `sh scripts/setup.sh base|dev|bench` works by hand too.
#   base  what `holdfast demo` needs to run     dev  the same plus what checks and tests need
#   bench  the same plus the peers that benchmarks measure
# Needs: Python 3.11 or newer with venv and pip, and a way to PyPI. Everything else is downloaded into .venv.
set -eu
cd "$(dirname "$0")/.."

UV_VERSION=$(sed -n '/^name = "uv"$/{n;s/version = "\(.*\)"/\1/p;}' uv.lock)
WANT=${1:?usage: sh scripts/setup.sh base|dev|bench}
VENV_PYTHON=.venv/bin/python
export UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=true PIP_DISABLE_PIP_VERSION_CHECK=1
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH || true

say() { printf 'setup: %s\n' "$*" >&2; }

stop() {
    printf '\nsetup: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Prints the first Python that is new enough. A name on PATH may be a shim without a Python behind it, so each is run.
find_python() {
    for name in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    stop "no Python 3.11 or newer found (tried: ${PYTHON:-python3.13 python3.12 python3.11 python3 python})." \
        "Install one, or name yours:  make test PYTHON=/path/to/python3.11"
}

make_venv() {
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        stop "$python has no venv or no ensurepip module." \
            "Debian and Ubuntu: apt install python3-venv     Others: install the full Python package," \
            "or name another Python:  make test PYTHON=/path/to/python3.11"
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || stop "$python could not create .venv; the reason is above."
}

no_download() {
    stop "$1 could not be downloaded; the reason is above." \
        "This step needs PyPI (pypi.org and files.pythonhosted.org) once; later runs work without a network." \
        "Behind a proxy set HTTPS_PROXY; with a mirror of PyPI set PIP_INDEX_URL. Then run the same command again."
}

install_uv() {
    [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" = "$UV_VERSION" ] && return
    say "installing uv $UV_VERSION"
    "$VENV_PYTHON" -m pip --version >/dev/null 2>&1 || "$VENV_PYTHON" -m ensurepip >/dev/null 2>&1 ||
        stop ".venv has no pip and cannot get one." "Remove it with  make clean  and run the same command again."
    {
        printf 'uv==%s' "$UV_VERSION"
        sed -n '/^name = "uv"$/,/^\[\[package\]\]$/s/.*hash = "\(sha256:[0-9a-f]*\)".*/ --hash=\1/p' uv.lock | tr -d '\n'
    } >.venv/uv.txt
    "$VENV_PYTHON" -m pip install --quiet --require-hashes -r .venv/uv.txt || no_download "uv"
}

# uv takes files from where uv.lock says. Where only a mirror is reachable, pip installs the same files from there, checked
# by the hashes in uv.lock.
install_locked() {
    case $WANT in
        base) groups="--no-default-groups --extra server --extra otlp --extra spark" exact=--inexact ;; # leaves what `dev` added
        dev) groups="--group dev --extra all" exact=--inexact ;; # leaves what `bench` added
        bench) groups="--group dev --group bench --extra all" exact= ;;
        *) stop "unknown set '$WANT': base, dev or bench" ;;
    esac
    command -v java >/dev/null 2>&1 || [ -n "${JAVA_HOME:-}" ] || groups="$groups --extra jre" # for Spark
    say "installing what uv.lock names ($WANT)"
    # shellcheck disable=SC2086  # groups is words
    .venv/bin/uv sync --quiet --frozen --no-install-project $exact --python "$VENV_PYTHON" $groups && return
    say "uv could not; trying pip with its own settings"
    # shellcheck disable=SC2086
    .venv/bin/uv export --quiet --frozen --no-emit-project $groups --output-file .venv/requirements.txt
    "$VENV_PYTHON" -m pip install --quiet --require-hashes -r .venv/requirements.txt || no_download "a package"
}

# uv brings its own build backend, so this step downloads nothing.
install_holdfast() {
    .venv/bin/uv pip install --quiet --offline --no-deps --python "$VENV_PYTHON" --editable . ||
        stop "holdfast itself could not be installed into .venv; the reason is above."
}

is_new_enough "$VENV_PYTHON" || make_venv
install_uv
install_locked
install_holdfast
[ "$WANT" = base ] || touch .venv/.ready-base
[ "$WANT" != bench ] || touch .venv/.ready-dev
touch ".venv/.ready-$WANT"
