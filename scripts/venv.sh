# Sourced by the other scripts. Goes to the repository's root, and gives `prepare`.
#
#   prepare <venv> [--constraint FILE] [group ...]
#
# makes the virtual environment when it is missing, and installs sluicegate with every extra plus the named
# dependency groups when pyproject.toml (or the constraints) changed since. A stamp in the environment, one
# per group, is a copy of what was installed from. Needs Python 3.11 or later; PYTHON names another one.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

prepare() {
    local venv="$1" constraint="" group missing=()
    shift
    if [ "${1:-}" = "--constraint" ]; then
        constraint="$2"
        shift 2
    fi
    if [ ! -f "$venv/.made" ]; then
        echo "making $venv" >&2
        "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sluicegate needs Python 3.11 or later; set PYTHON to one")'
        "${PYTHON:-python3}" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1" # dependency groups
        touch "$venv/.made"
    fi
    for group in all "$@"; do
        cat pyproject.toml ${constraint:+"$constraint"} | cmp -s - "$venv/.stamp-$group" || missing+=("$group")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "installing into $venv: ${missing[*]}" >&2
        local arguments=(--editable ".[all]")
        for group in "$@"; do arguments+=(--group "$group"); done
        "$venv/bin/python" -m pip install --quiet ${constraint:+--constraint "$constraint"} "${arguments[@]}"
        for group in all "$@"; do cat pyproject.toml ${constraint:+"$constraint"} >"$venv/.stamp-$group"; done
    fi
    PATH="$PWD/$venv/bin:$PATH"
}
