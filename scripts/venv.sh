# Sourced by the other scripts. Changes to the repository's root and defines `prepare` and `find_python`:
#
#   prepare <venv> [--constraint FILE] [group ...]
#
# creates the virtual environment if it is missing. It installs sluicegate with every extra and these dependency groups
# if pyproject.toml (or the constraints file) changed since the last installation. The environment keeps one stamp for
# each group: a copy of the files that it was installed from. Needs Python 3.11 or later; PYTHON names another executable.
#
#   find_python <name or path>
#
# prints an interpreter of that name that runs: the one on PATH, or one of pyenv's. A name on PATH may not run: pyenv's own
# `python3.13` ends with an error if no such version is selected.

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
        echo "creating $venv" >&2
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

find_python() {
    local found
    for found in "$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$1"; do
        if "$found" -c "" 2>/dev/null; then
            command -v "$found"
            return
        fi
    done
    return 1
}
